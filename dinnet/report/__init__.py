"""What is shown of classified flows: rows in several formats, a summary, a page with plots."""
