"""The instructor's side: grade a folder of submissions that nobody has to trust."""
