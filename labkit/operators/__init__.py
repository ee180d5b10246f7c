"""What one operator costs on this device."""
