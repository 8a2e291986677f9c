"""What local SGD remembers over a resume."""

from torch import nn

from topout.train.local_sgd import LocalSGD
from topout.train.place import alone


class Counted(LocalSGD):
    num_meetings = 0

    def meet(self):
        self.num_meetings += 1
        super().meet()


def resumed(state):
    local = Counted(nn.Linear(2, 2), alone(), every=4)
    local.load_state_dict(state)
    local.finish()
    return local.num_meetings


def test_what_was_learnt_before_a_resume_is_averaged_at_the_end():
    local = LocalSGD(nn.Linear(2, 2), alone(), every=4)
    assert resumed(local.state_dict()) == 0
    local.step()
    assert resumed(local.state_dict()) == 1
    local.finish()
    assert resumed(local.state_dict()) == 0


def test_a_state_that_does_not_say_whether_there_is_news_is_averaged():
    assert resumed({"num_steps": 3}) == 1
