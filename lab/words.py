"""Numbers with their nouns, as messages and reports say them."""


def plural(count, noun):
    """3 students, 1 student"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
