"""What the course's authors use: building notebooks, keeping their outputs, recording runs, what the README generates.

No notebook of a reader imports it; `labkit notebooks`, `labkit record` and `labkit badges` do."""
