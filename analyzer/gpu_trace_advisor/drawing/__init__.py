"""What reports draw beside the Advice: lanes of boxes, and charts of one device, as plain columns and numbers."""
