"""What the README's tables of records have in common: how they were measured."""


def measured_on(record):
    """One sentence: the machine, the day and the versions of a record."""
    machine = record["machine"]
    versions = record["versions"]
    settings = "".join(f" {name}={value}." for name, value in machine["settings"].items())
    return (f"Medians of {record['rounds']} rounds, the lowest and the highest in brackets. "
            f"{machine['threads']} threads on {machine['cores']} cores of {machine['cpu']}, on "
            f"which {machine['load_before']:.1f} programs ran already, {record['date']}. "
            + ", ".join(f"{k} {v}" for k, v in versions.items()) + "." + settings)
