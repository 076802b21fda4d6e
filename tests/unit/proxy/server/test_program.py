"""The command line of mqproxy: a mistake is one line that says what and where."""

import pytest

from proxy.server.program import run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "namesrvAddr is empty"),
        (["-n", "nonsense"], "'nonsense' is not host:port"),
        (["-n", "a:1;b"], "'b' is not host:port"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--set", "grpcServerPrt=1"], "did you mean 'grpcServerPort'?"),
        (["--set", "proxyMode=LOCAL"], "start the broker with enableProxy=true"),
        (["--set", "tlsTestModeEnable=false"], "set tls.test.mode.enable=false"),
        (["-n", "a:1", "--set", "authenticationEnabled=true"], "mqproxy has no users"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("mqproxy: ") and says in line


def test_print_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-p", "-n", "a:1", "--set", "grpcServerPort=9000", "--set", "useDelayLevel=true"]) == 0
    out = capsys.readouterr().out
    assert "grpcServerPort=9000\n" in out and "namesrvAddr=a:1\n" in out
    assert "useDelayLevel" in out and "are timers" in out
