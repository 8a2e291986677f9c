"""Each question is worked out once, and None is an answer."""

from topout.schema.remembered import remembered


def test_each_question_is_worked_out_once():
    asked = []

    @remembered
    def find(*words):
        asked.append(words)
        return words[0] if len(words) == 2 else None

    assert [find("a", "b"), find("a", "b"), find("c"), find("c")] == ["a", "a", None, None]
    assert asked == [("a", "b"), ("c",)]
