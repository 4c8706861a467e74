"""Files that grow: followed through rotation and truncation, cut into lines or records, given to their readers."""
