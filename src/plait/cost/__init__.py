"""What layers and links cost: measured tables and models behind one interface."""
