"""Episodes: append-only rows, chunks by epoch and offset, endings by finish reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.episode import (
    TRANSITIONS,
    Chunk,
    Ending,
    Episode,
    EpisodeError,
    EpisodeLimits,
    Phase,
    PhaseClock,
    Segment,
    Span,
    Verdict,
)

LIMITS = EpisodeLimits(max_len=64, max_turn_tokens=16, max_turns=4)


def chunk(ids, *, epoch=1, offset=0, version=0, finish=None, discarded=0, worker="w@1"):
    return Chunk(epoch, offset, ids, [-float(i) for i in ids], version, worker, f"d{version}", finish, discarded)


def asked(limits=LIMITS, prompt=(1, 2, 3)):
    episode = Episode(limits)
    episode.observe(prompt)
    return episode, episode.ask()


def test_a_whole_episode():
    episode, ask = asked()
    assert (ask.turn, ask.epoch, ask.max_new_tokens, ask.n_kept) == (0, 1, 16, 0)
    assert episode.take(chunk([10, 11])) is Verdict.KEPT
    assert episode.take(chunk([12], offset=2, version=1, finish="stop")) is Verdict.KEPT
    assert episode.turn_token_ids == [10, 11, 12]
    episode.act(0.25, terminated=False, truncated=False)
    episode.observe([4, 5])
    ask = episode.ask()
    assert (ask.turn, ask.epoch) == (1, 2)
    assert episode.prompt_token_ids == [1, 2, 3, 10, 11, 12, 4, 5]
    episode.take(chunk([13], epoch=2, version=1, finish="stop"))
    episode.act(1.0, terminated=True, truncated=False)
    assert episode.ending is Ending.COMPLETED and not episode.is_truncated
    assert episode.token_ids == [1, 2, 3, 10, 11, 12, 4, 5, 13]
    assert episode.spans == [Span(3, 3), Span(8, 1)]
    assert episode.loss_mask() == [0, 0, 0, 1, 1, 1, 0, 0, 1]
    assert episode.logprobs == [-10.0, -11.0, -12.0, -13.0]
    assert episode.segments == [Segment(0, "w@1", "d0", 2), Segment(1, "w@1", "d1", 2)]
    assert (episode.start_version, episode.n_turns, episode.n_generated) == (0, 2, 4)
    assert episode.episode_return == 1.25
    episode.check()


def test_prompt_of_the_next_turn_starts_with_every_id_so_far():  # TOK-01
    episode, _ = asked()
    episode.take(chunk([10, 11], finish="stop"))
    before = list(episode.token_ids)
    episode.act(None, terminated=False, truncated=False)
    episode.observe([7])
    episode.ask()
    assert episode.prompt_token_ids[: len(before)] == before


def test_tokens_that_were_not_sampled_carry_no_loss():  # TOK-07
    episode, _ = asked(prompt=(1,))
    episode.take(chunk([4, 5], finish="stop"))
    episode.act(None, terminated=False, truncated=False)
    episode.observe([2])
    assert episode.token_ids == [1, 4, 5, 2]
    assert episode.loss_mask() == [0, 1, 1, 0]
    assert len(episode.logprobs) == 2


@pytest.mark.parametrize(("finish", "is_truncated"), [("stop", False), ("length", True)])
def test_finish_reason_decides_truncation_not_the_last_id(finish, is_truncated):  # TOK-06 a, b
    episode, _ = asked()
    episode.take(chunk([5, 99], finish=finish))  # 99 may or may not be the tokenizer's end: nobody looks
    assert episode.is_truncated is is_truncated


def test_one_flag_per_episode_whatever_its_turns():  # TOK-06 c
    limits = EpisodeLimits(max_len=64, max_turn_tokens=2, on_length="act")
    flags = []
    for finishes in (["stop", "length", "stop"], ["stop", "stop"]):
        episode = Episode(limits)
        for number, finish in enumerate(finishes):
            episode.observe([1])
            ask = episode.ask()
            episode.take(chunk([5, 6], epoch=ask.epoch, finish=finish))
            episode.act(None, terminated=number == len(finishes) - 1, truncated=False)
        flags.append(episode.is_truncated)
    assert flags == [True, False]


def test_a_turn_is_asked_for_what_fits():  # TOK-04
    episode, ask = asked(prompt=range(60))
    assert ask.max_new_tokens == 4
    episode.take(chunk([1, 2, 3, 4], finish="length"))
    assert episode.ending is Ending.CONTEXT_LENGTH and episode.is_truncated


def test_a_cut_turn_ends_as_max_tokens():
    episode, _ = asked()
    episode.take(chunk(range(16), finish="length"))
    assert episode.ending is Ending.MAX_TOKENS


def test_an_episode_that_is_over_keeps_its_end_when_the_window_is_full():  # TOK-04, variant 1
    episode, _ = asked(prompt=range(60))
    episode.take(chunk([1, 2, 3, 4], finish="stop"))
    episode.act(1.0, terminated=True, truncated=False)
    assert episode.ending is Ending.COMPLETED and episode.episode_return == 1.0


@pytest.mark.parametrize("n", [64, 65, 1000])
def test_an_observation_that_leaves_no_room_ends_the_episode_and_stays_out_of_the_row(n):
    episode = Episode(LIMITS)
    episode.observe(range(n))
    assert episode.ending is Ending.CONTEXT_LENGTH and episode.token_ids == []


def test_a_row_is_not_cut_to_the_turn_limit():  # TOK-13
    episode = Episode(EpisodeLimits(max_len=64, max_turn_tokens=8))
    for turn in range(3):
        episode.observe([9] * 5 if turn else [])
        ask = episode.ask()
        episode.take(chunk(range(8), epoch=ask.epoch, finish="stop"))
        episode.act(None, terminated=turn == 2, truncated=False)
    assert len(episode.token_ids) == 34 and sum(episode.loss_mask()) == 24


def test_turn_limit_and_the_environments_own_truncation():
    episode = Episode(EpisodeLimits(max_len=64, max_turn_tokens=4, max_turns=1))
    episode.observe([1])
    episode.ask()
    episode.take(chunk([2], finish="stop"))
    episode.act(0.0, terminated=False, truncated=False)
    assert episode.ending is Ending.MAX_TURNS and episode.is_truncated
    other, _ = asked()
    other.take(chunk([2], finish="stop"))
    other.act(0.0, terminated=False, truncated=True)
    assert other.ending is Ending.ENV_TRUNCATED and other.is_truncated


def test_rewards_add_up_and_nothing_is_filled_in():  # AGL-01, ADV-08
    episode, _ = asked()
    episode.take(chunk([2], finish="stop"))
    episode.act(None, terminated=True, truncated=False)
    assert episode.episode_return is None
    steps = Episode(LIMITS)
    for reward in (0.2, 0.3, None, 1.0):
        steps.observe([1])
        ask = steps.ask()
        steps.take(chunk([2], epoch=ask.epoch, finish="stop"))
        steps.act(reward, terminated=reward == 1.0, truncated=False)
    assert steps.episode_return == pytest.approx(1.5)


def test_chunks_of_another_epoch_are_fenced():
    episode, _ = asked()
    episode.take(chunk([10]))
    again = episode.ask_again()
    assert (again.epoch, again.n_kept) == (2, 1)
    assert episode.take(chunk([11], offset=1)) is Verdict.FENCED
    assert episode.take(chunk([11], offset=1, epoch=3)) is Verdict.FENCED
    assert episode.take(chunk([12], offset=1, epoch=2, finish="stop")) is Verdict.KEPT
    assert episode.turn_token_ids == [10, 12] and episode.dropped_chunks == 2
    assert episode.take(chunk([13], offset=2, epoch=2)) is Verdict.FENCED  # the turn is over


def test_duplicates_and_gaps_are_dropped():
    episode, _ = asked()
    episode.take(chunk([10, 11]))
    assert episode.take(chunk([10, 11])) is Verdict.DUPLICATE
    assert episode.take(chunk([13], offset=3)) is Verdict.GAP
    assert episode.turn_token_ids == [10, 11]


def test_a_discard_takes_the_turn_back_and_moves_the_start_version():
    episode, _ = asked()
    episode.take(chunk([10, 11], version=3))
    episode.take(chunk([12], offset=2, version=4))
    assert episode.start_version == 3
    assert episode.take(chunk([20], version=5, discarded=4)) is Verdict.KEPT
    assert episode.discarded_tokens == 4  # one of them never came here
    assert episode.turn_token_ids == [20] and episode.start_version == 5
    episode.check()


def test_a_discard_leaves_former_turns_alone():
    episode, _ = asked()
    episode.take(chunk([10, 11], version=3, finish="stop"))
    episode.act(None, terminated=False, truncated=False)
    episode.observe([1])
    ask = episode.ask()
    episode.take(chunk([12], epoch=ask.epoch, version=3))
    episode.take(chunk([], epoch=ask.epoch, version=4, discarded=1))
    assert episode.segments == [Segment(3, "w@1", "d3", 2)] and episode.n_generated == 2
    episode.check()


def test_misuse_and_broken_chunks_tell_their_story():
    episode, _ = asked()
    with pytest.raises(EpisodeError, match=r"cannot observe.*phase generating"):
        episode.observe([1])
    with pytest.raises(EpisodeError, match="more than the 16 tokens"):
        episode.take(chunk(range(17)))
    with pytest.raises(EpisodeError, match="2 ids and 1 logprobs"):
        episode.take(Chunk(1, 0, [1, 2], [0.0], 0, "w", "d"))
    with pytest.raises(EpisodeError, match="neither stop nor length"):
        episode.take(chunk([1], finish="abort"))


def test_limits_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        EpisodeLimits(max_len=0, max_turn_tokens=1)
    with pytest.raises(ValueError, match="on_length"):
        EpisodeLimits(max_len=1, max_turn_tokens=1, on_length="cut")


def test_every_phase_has_a_row_in_the_table():
    assert set(TRANSITIONS) == set(Phase) and TRANSITIONS[Phase.OVER] == frozenset()


ids = st.lists(st.integers(0, 99), max_size=6)


@given(st.data())
def test_after_any_sequence_of_events_the_episode_holds_together(data):
    """The row grows by what was taken alone, and its masks, logprobs and segments cover the same tokens."""
    limits = EpisodeLimits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 8)), 5, data.draw(ends))
    episode = Episode(limits)
    closed: list[int] = []  # the row up to the current turn never changes again
    for _ in range(data.draw(st.integers(1, 25))):
        match episode.phase:
            case Phase.OBSERVING:
                episode.observe(data.draw(ids))
            case Phase.READY:
                episode.ask()
            case Phase.GENERATING:
                _random_chunk(data, episode)
            case Phase.ACTING:
                episode.act(
                    data.draw(st.none() | st.floats(0, 1)), terminated=data.draw(st.booleans()), truncated=False
                )
            case Phase.OVER:
                break
        episode.check()
        assert episode.token_ids[: len(closed)] == closed
        if episode.phase is not Phase.GENERATING:
            closed = list(episode.token_ids)
            assert sum(episode.loss_mask()) == len(episode.logprobs) == sum(s.n_tokens for s in episode.segments)
    assert (episode.ending is None) == (episode.phase is not Phase.OVER)


ends = st.sampled_from(["end", "act"])


def _random_chunk(data, episode):
    if data.draw(st.booleans()):
        episode.ask_again()
    new = chunk(
        data.draw(ids),
        epoch=episode.epoch - data.draw(st.sampled_from([0, 0, 0, 1])),
        offset=max(0, len(episode.turn_token_ids) + data.draw(st.sampled_from([0, 0, 0, -1, 1]))),
        version=data.draw(st.integers(0, 2)),
        finish=data.draw(st.sampled_from([None, None, "stop", "length"])),
        discarded=data.draw(st.sampled_from([0, 0, 0, 2])),
    )
    try:
        episode.take(new)
    except EpisodeError as error:
        assert "more than" in str(error)


def test_phase_seconds_add_up_to_the_whole():
    clock = PhaseClock("queue", 10.0)
    clock.enter("reset", 11.0)
    clock.enter("generate", 11.5)
    clock.enter("step", 14.0)
    clock.enter("generate", 14.25)
    seconds = clock.seconds(15.0)
    assert seconds == {"queue": 1.0, "reset": 0.5, "generate": 3.25, "step": 0.25}
    assert sum(seconds.values()) == 5.0
