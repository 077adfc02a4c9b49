"""Image file bytes -> uint8 pixels."""
