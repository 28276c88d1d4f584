"""What a person or a program reads of an Advice."""
