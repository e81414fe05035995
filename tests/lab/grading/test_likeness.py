"""Copies are seen through renaming, reordering and comments; honest answers are not accused."""

import json
import re

import pytest

from lab import course, stub
from lab.grading import likeness

LESSON = course.find("g06_cuda_graphs")
EXERCISE = LESSON.exercise("choose_sizes")
REFERENCE = stub.normalised(LESSON.sources["python"], "choose_sizes", "python")

# Five ways to write it.
HONEST = ['''
def choose_sizes(max_batch, waste):
    result = []
    largest = max_batch
    while True:
        result.append(largest)
        smallest = largest
        for candidate in range(largest, 0, -1):
            padded = largest - candidate
            if padded / largest > waste:
                break
            smallest = candidate
        if smallest == 1:
            break
        largest = smallest - 1
    result.reverse()
    return result
''', '''
def choose_sizes(max_batch, waste):
    def too_bad(batch, size):
        return (size - batch) > waste * size
    if max_batch < 1:
        return []
    bad = [b for b in range(1, max_batch + 1) if too_bad(b, max_batch)]
    if not bad:
        return [max_batch]
    return choose_sizes(bad[-1], waste) + [max_batch]
''', '''
def choose_sizes(max_batch, waste):
    import math
    sizes = {max_batch}
    size = max_batch
    while size >= 1:
        least = math.ceil(size * (1 - waste))
        least = max(least, 1)
        size = least - 1
        if size >= 1:
            sizes.add(size)
    return sorted(sizes)
''', '''
def choose_sizes(max_batch, waste):
    serves = np.empty(max_batch + 1, dtype=int)
    serves[0] = 0
    current = max_batch
    for batch in range(max_batch, 0, -1):
        if (current - batch) > current * waste:
            current = batch
        serves[batch] = current
    return np.unique(serves[1:]).tolist()
''', '''
def choose_sizes(max_batch, waste):
    out = []
    n = max_batch
    while n > 0:
        out.insert(0, n)
        k = n
        while k > 0 and (n - k) / n <= waste:
            k = k - 1
        n = k
    return out
''']

COPY = '''
def choose_sizes(max_batch, waste):
    """My very own."""
    top = max_batch            # start with the largest
    answer = []
    while True:
        answer.append(top)

        low = top
        for k in range(top, 0, -1):
            # how many rows are padded
            lost = top - k
            if lost / top > waste: break
            low = k
        if low == 1: break
        top = low - 1
    answer.reverse()
    return answer
'''


def near(*sources, reference=REFERENCE):
    """The pairs of near-identical answers; students are named by number."""
    answers = {str(i): stub.normalised(text, "choose_sizes", "python")
               for i, text in enumerate(sources)}
    return [who for who, _, _ in likeness.near(answers, reference)]


def test_a_copy_is_seen_through_names_comments_and_order():
    assert near(*HONEST, COPY) == [("0", "5")]


def test_honest_answers_are_not_alike():
    assert near(*HONEST) == []


def test_the_courses_own_way_is_nobodys():
    own = stub.extract(LESSON.sources["python"], "choose_sizes", "python")
    renamed = re.sub(r"\bsizes\b", "mine", own)
    assert near(own, renamed) == []
    assert near(own, renamed, reference="") == [("0", "1")]


def test_short_answers_are_never_alike():
    short = "def choose_sizes(max_batch, waste):\n    return [max_batch]\n"
    assert near(short, short) == []


def test_what_much_of_the_class_writes_is_usual():
    assert len(near(*[COPY] * 4)) == 6, "a small group may be a ring"
    assert near(*[COPY] * 5) == []
    assert near(*HONEST * 12) == [], "each way is written by a fifth of the class"


def test_where_all_are_alike_a_pair_must_be_more_so():
    """Five endings of one loop: no two are near-identical, measured by what is usual."""
    same = HONEST[0].replace("    result.reverse()\n    return result", "    {}\n    return result")
    endings = ["result.reverse()", "result.sort()", "result = result[::-1]",
               "result = sorted(set(result))", "return list(reversed(result))"]
    alike = [same.format(ending) for ending in endings]
    assert len(near(*alike[:2])) == 1, "in a class of their own"
    assert near(*alike) == []
    assert near(*alike, alike[2].replace("largest", "n")) == [("2", "5")]


def test_cuda_is_compared_too():
    kernel = '''extern "C" __global__ void add(const float* a, float* out, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            { float left = a[i] * 2.0f; out[i] = left > 0 ? left : 0.0f; } }'''
    copied = kernel.replace("left", "tmp").replace("[i]", "[k]").replace("int i", "int k /* */")
    copied = copied.replace("i <", "k <").replace("i +=", "k +=")
    answers = {who: stub.normalised(text, "add", "cuda")
               for who, text in (("ada", kernel), ("ben", copied))}
    [(who, index, _)] = likeness.near(answers, "")
    assert who == ("ada", "ben") and index == 1.0


@pytest.mark.parametrize("exercises, found", [(2, []), (3, ["ben"])])
def test_a_pair_needs_a_long_answer_or_several(exercises, found, graded, monkeypatch):
    """Answers of a length between SHORT and LONG count only together."""
    middling = "def f ( a , b ) : " + " ".join(f"a += b * {n} ;" for n in range(4))
    size = len(likeness.shingles(middling))
    assert likeness.SHORT <= size < likeness.LONG
    names = [e.name for e in course.find("k01_vector_add").exercises][:exercises]
    details = {name: {"text": middling} for name in names}
    assert partners(graded, "f" * exercises, details) == found


def partners(graded, fates, details):
    """The students paired with ada, where ben sent the same."""
    from lab.grading import points, scores

    lessons = [course.find("k01_vector_add"), course.find("k02_transpose")]
    sent = [graded(name, fates, **details) for name in ("ada", "ben")]
    found = scores.students(sent, points.worths(lessons), {})
    return [pair.students[1] for pair in likeness.pairs(found, lessons)]


def test_one_long_answer_is_enough(graded):
    assert partners(graded, "f", {"add_cuda": {"text": HONEST[0]}}) == ["ben"]


def test_the_same_student_is_no_pair(graded, write):
    details = {"add_cuda": {"text": HONEST[0]}}
    lines, files = write(graded("ada", "f", **details), graded("ada", "f", path="b.zip", **details))
    assert '"pairs": []' in files["summary.json"]


def test_a_pair_is_reported_without_a_penalty(graded, write):
    details = {"add_cuda": {"text": HONEST[0]}}
    lines, files = write(graded("ada", "p", **details), graded("ben", "p", **details))
    assert "1 near-identical pair to look at: see summary.html" in lines
    assert "ada and ben" in files["summary.html"]
    assert "k01_vector_add/add_cuda 100 %" in files["summary.html"]
    assert "identical" not in files["feedback/ada.html"] + files["grades.csv"]


# ---- identical submissions


def texts(lesson, change=lambda text: text):
    """{exercise: {"text": …}} of a lesson's own answers, changed."""
    return {e.name: {"text": change(stub.normalised(lesson.sources[e.language], e.name,
                                                    e.language))} for e in lesson.exercises}


def test_identical_submissions_are_shown(graded, write):
    k01 = course.find("k01_vector_add")
    wrong = texts(k01, lambda text: text.replace("x", "a"))
    fates = "f" * len(k01.exercises)
    lines, files = write(graded("ada", fates, **wrong), graded("ben", fates, **wrong),
                         graded("cem", fates, **texts(k01, lambda text: text.replace("x", "b"))))
    said = json.loads(files["summary.json"])["identical"]
    assert said == [{"students": ["ada", "ben"], "exercises": len(k01.exercises),
                     "as_the_reference": False}]
    assert "2 students with the same text as another: see summary.html" in lines
    assert f"<td>{len(k01.exercises)} exercises</td>" in files["summary.html"]
    assert "the same text" not in files["feedback/ada.html"] + files["grades.csv"]


def test_what_is_the_courses_own_text_is_marked_so(graded, write):
    k01 = course.find("k01_vector_add")
    fates = "p" * len(k01.exercises)
    _, files = write(*(graded(name, fates, **texts(k01)) for name in ("ada", "ben", "cem")))
    assert json.loads(files["summary.json"])["identical"] == [
        {"students": ["ada", "ben", "cem"], "exercises": len(k01.exercises),
         "as_the_reference": True}]
    assert "ada and ben and cem" in files["summary.html"]
    assert "exercises, as the reference" in files["summary.html"]
    assert json.loads(files["summary.json"])["pairs"] == []


def test_little_or_nothing_is_not_called_identical(graded, write):
    short = {"predict_sectors_per_request": {"text": "def predict_sectors_per_request(): return 4"}}
    _, files = write(graded("ada", "p", **short), graded("ben", "p", **short), graded("cem"),
                     graded("dee"))
    assert json.loads(files["summary.json"])["identical"] == []
