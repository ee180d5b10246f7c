"""What one operator, and one training step, costs on this device: its roofline and where the time goes."""
