"""Results of work that depends on a key alone, kept for as long as there is room."""


class Remembered(dict):
    """At most `most` results; all are forgotten when one more comes."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def get(self, key, make):
        """-> what make() gave for this key"""
        if key not in self:
            if len(self) == self.most:
                self.clear()
            self[key] = make()
        return self[key]
