"""A grammar that tells small stories:  python layer2_graph/small/stories.py

A production is one way to write a symbol: a pair of the symbol and a text that it becomes, as
textbooks count them.
There are 12,257 productions of 2,846 symbols, all different, but only 4,895 texts, since some are
written for several symbols.
The productions of a symbol are in a random order, the same in each run, and the one of rank r is
taken with a weight of 1/r (Zipf).
The grammar has a memory: who, where and what are chosen once a story, so a name or a thing in the
first sentence decides words in the last, and what helps depends on what went wrong.
"""

import re
from random import Random

from layer2_graph.small.words import (
    ANIMALS,
    BOYS,
    GIRLS,
    PEOPLE,
    PLACES,
    RULES,
    THINGS,
    TRAITS,
    TROUBLES,
)

SHE = {"he": "she", "him": "her", "his": "her", "himself": "herself"}
HE = {"he": "he", "him": "him", "his": "his", "himself": "himself"}
PARTS = ("trouble", "cause", "help", "result")          # as in TROUBLES


def alternatives(text):
    """The sentences of a text, separated by |; line breaks in it do not count."""
    return [" ".join(piece.split()) for piece in text.split("|")]


def numbered(sentence, noun):
    """The sentence with the noun in it, and the words that agree with the noun's number."""
    many = noun.endswith("*")
    it, they, was = ("them", "they", "were") if many else ("it", "it", "was")
    words = {"n": noun.rstrip("*"), "it": it, "they": they, "was": was}
    return re.sub(r"\{(n|it|they|was)\}", lambda match: words[match[1]], sentence)


def grammar():
    """{symbol: [production]}, the most frequent first."""
    rules = {name: alternatives(text) for name, text in RULES.items()}
    rules |= {"name:she": GIRLS.split(), "name:he": BOYS.split(),
              "role": PEOPLE.split() + ANIMALS.split(), "trait": list(TRAITS),
              "kind": list(PLACES), "class": list(THINGS)}
    rules |= {f"habit:{trait}": [habit] for trait, (habit, _) in TRAITS.items()}
    for kind, (places, sights) in PLACES.items():
        rules |= {f"place:{kind}": alternatives(places), f"sight:{kind}": alternatives(sights)}
    for name, (nouns, adjectives, uses, kinds) in THINGS.items():
        rules[f"noun:{name}"] = nouns.split()
        for noun in nouns.split():
            rules |= {f"adjective:{noun}": adjectives.split(), f"kind:{noun}": kinds.split(),
                      f"use:{noun}": [numbered(use, noun) for use in alternatives(uses)]}
            for kind in kinds.split():
                for part, sentences in zip(PARTS, TROUBLES[kind], strict=True):
                    rules[f"{part}:{kind}:{noun}"] = [numbered(sentence, noun)
                                                      for sentence in alternatives(sentences)]
    return {symbol: Random(symbol).sample(choices, len(choices))
            for symbol, choices in rules.items()}


class Teller:
    """Tells stories.
    The same seed tells the same ones, on any machine."""

    def __init__(self, seed):
        self.rng, self.rules = Random(seed), grammar()

    def pick(self, symbol):
        """One production of a symbol."""
        choices = self.rules[symbol]
        return self.rng.choices(choices, [1 / rank for rank in range(1, len(choices) + 1)])[0]

    def write(self, symbol, story):
        """A symbol, expanded to the last, with the people and things of the story."""
        text = self.pick(symbol).format_map(story)
        return re.sub("<([^<>]+)>", lambda inner: self.write(inner[1], story), text)

    def thing(self):
        """A noun, and the same with its article and an adjective."""
        noun = self.pick("noun:" + self.pick("class"))
        adjective = self.pick(f"adjective:{noun}")
        article = "some" if noun.endswith("*") else "a"
        return noun, f"{article} {adjective} {noun.rstrip('*')}"

    def person(self, *others):
        """A name that none of the others has, and its pronouns."""
        pronouns = self.rng.choice((SHE, HE))
        while (name := self.pick(f"name:{pronouns['he']}")) in others:
            pass
        return name, pronouns

    def cast(self):
        """Who and what a story is about."""
        hero, pronouns = self.person()
        friend, friend_pronouns = self.person(hero)
        (thing, a_thing), (gift, a_gift) = self.thing(), self.thing()
        while gift == thing:
            gift, a_gift = self.thing()
        trait = self.pick("trait")
        story = dict(pronouns, hero=hero, trait=trait, role=self.pick("role"), friend=friend,
                     friend_him=friend_pronouns["him"], friend_role=self.pick("role"),
                     friend_pronouns=friend_pronouns, moral=TRAITS[trait][1], a_gift=a_gift,
                     a_thing=a_thing)
        return self.about(story, thing) | {"gift": gift}

    def about(self, story, thing):
        """The story with this thing, the trouble with it, and a place."""
        kind = self.pick("kind")
        return story | {"key": thing, "noun": thing.rstrip("*"), "kind": kind,
                        "trouble": self.pick(f"kind:{thing}"), "place": self.pick(f"place:{kind}")}

    def tell(self):
        """(a question that asks for the story, the story)"""
        story = self.cast()
        chance = self.rng.random
        opening = ["open", f"habit:{story['trait']}", "had", *self.perhaps(0.8, "liked")]
        paragraphs = [self.paragraph(opening, story), *self.episode(story)]
        if chance() < 0.6:
            gift = ["gift", *self.perhaps(0.7, "joy")]
            paragraphs.append(self.paragraph(gift, story))
            if chance() < 0.4:                      # what was given goes wrong, and the hero helps
                other = self.about(story | story["friend_pronouns"] | {
                    "hero": story["friend"], "friend": story["hero"], "friend_him": story["him"],
                    "friend_role": story["role"], "a_thing": story["a_gift"]}, story["gift"])
                paragraphs += self.episode(other)
        paragraphs.append(self.paragraph(["end"], story))
        return self.write("ask", story), "\n".join(paragraphs)

    def episode(self, story):
        """Two paragraphs: something goes wrong, and a friend helps."""
        key = f"{story['trouble']}:{story['key']}"
        wrong = ["went", *self.perhaps(0.6, f"sight:{story['kind']}"), f"then|trouble:{key}",
                 "felt", *self.perhaps(0.5, "why")]
        right = ["came", *self.perhaps(0.6, "asked", "answered"), f"so|help:{key}", "glad",
                 *self.perhaps(0.7, f"result:{key}")]
        return [self.paragraph(wrong, story), self.paragraph(right, story)]

    def perhaps(self, share, *sentences):
        """These sentences in a share of all stories, none in the others."""
        return sentences if self.rng.random() < share else ()

    def paragraph(self, sentences, story):
        """Sentences, each a symbol or several with | between them, as one line of text."""
        written = []
        for symbols in sentences:
            text = " ".join(self.write(symbol, story) for symbol in symbols.split("|"))
            text = re.sub(r"\b([Aa]) (?=[aeiou](?!se))", r"\1n ", text)
            at = text.index(next(filter(str.isalpha, text)))
            text = text[:at] + text[at].upper() + text[at + 1:]
            written.append(text if text[-1] in ".?!" else text + ".")
        return " ".join(written)


def main():
    rules = grammar()
    print(f"{sum(map(len, rules.values())):,} productions of {len(rules):,} symbols\n")
    print(*Teller(0).tell(), sep="\n\n")


if __name__ == "__main__":
    main()
