"""What is known without a recording: the documents' claims and the devices."""
