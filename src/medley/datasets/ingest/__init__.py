"""What a row, a label and a key mean, whatever door they come in by."""
