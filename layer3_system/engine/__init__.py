"""What surrounds the loop of s07's Engine.
It knows the lessons up to s06, and not the loop.

intake      requests on their way in: refused or queued, and pages kept after an end
draws       from scores to tokens: penalties, guesses, each request's own random numbers
outputs     from tokens to what a client gets
guide       which tokens a grammar allows, for scores and for guesses
writer      the text of an answer in the making
drafts      guesses at the next tokens, and what becomes of them
lengths     how many guesses a step is worth
transfer    pages that go from one engine to another
invariants  what must hold of a scheduler and its pool
"""
