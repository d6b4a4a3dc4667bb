"""The sections of a page, each a function from a comparison to blocks. Without blocks a section is left out."""
