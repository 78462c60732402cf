"""What a machine is: its instance type, accelerators and EFA devices, as its own tools and kernel tell it."""
