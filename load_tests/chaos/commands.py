"""What `faulty_model` can be told to do. The model's process imports this file too."""

PIPE = "faults"
"""Name of the named pipe in the model's version folder."""
HANG = "hang"
"""The next step never ends."""
END = "end"
"""With a thread's name: that thread ends."""
