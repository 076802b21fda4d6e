"""Silence against a list of all gaps, and the rule for hung masters against its words."""

from random import Random

from keelmq.health.silence import BUCKET_MS, BUCKETS, Silence
from namesrv.plugins.controller.core.hang import MasterHeartbeat, hung_from_ms

MIN_MS = 600


def gaps_of(seed: int) -> tuple[Silence, list[tuple[int, int]]]:
    """Returns the silence, and (end, length) of each gap that counts."""
    dice = Random(seed)
    now_ms = dice.randrange(10_000_000)
    silence, gaps = Silence(MIN_MS, now_ms), []
    for _ in range(dice.randrange(1, 200)):
        gap_ms = dice.choice((100, 100, 100, 300, 700, 2_000, 30_000))
        now_ms += gap_ms
        if dice.random() < 0.1:
            silence.begin(now_ms)
        else:
            silence.heard(now_ms)
            gaps.append((now_ms, gap_ms))
        assert silence.heard_ms == now_ms
        check(silence, gaps, now_ms)
    return silence, gaps


def check(silence: Silence, gaps: list[tuple[int, int]], now_ms: int) -> None:
    surely = [gap for end, gap in gaps if now_ms - end < (BUCKETS - 1) * BUCKET_MS]
    at_most = [gap for end, gap in gaps if now_ms - end < BUCKETS * BUCKET_MS]
    low = max(MIN_MS, max(surely, default=0) * 3 // 2)
    assert low <= silence.threshold_ms <= max(MIN_MS, max(at_most, default=0) * 3 // 2)


def test_the_threshold_is_that_of_the_last_minute() -> None:
    for seed in range(200):
        silence, _ = gaps_of(seed)
        end_ms = silence.heard_ms + silence.threshold_ms
        assert silence.is_silent(end_ms) and not silence.is_silent(end_ms - 1)


def test_a_long_gap_is_forgotten_after_a_minute() -> None:
    silence = Silence(MIN_MS, 5_000)
    silence.heard(9_000)
    assert silence.threshold_ms == 6_000
    for at_ms in range(10_000, 80_001, 1_000):
        silence.heard(at_ms)
    assert silence.threshold_ms == 1_500


def test_a_master_hangs_only_if_everything_says_so() -> None:
    """Every combination of up to four slaves, against the sentence of the docstring."""
    dice = Random(1)
    epoch = 7
    for _ in range(3_000):
        reports = [dice.choice((None, epoch, epoch - 1)) for _ in range(dice.randrange(5))]
        heartbeat = MasterHeartbeat(dice.choice((epoch, epoch, epoch - 1)), dice.choice((None, 1_000)))
        found = hung_from_ms(heartbeat, reports, master_epoch=epoch)
        silent = [each for each in reports if each == epoch]
        hangs = len(silent) >= 1 and len(silent) > len(reports) / 2
        expected = hangs and heartbeat.epoch == epoch and heartbeat.silent_from_ms is not None
        assert found == (1_000 if expected else None), (heartbeat, reports)
