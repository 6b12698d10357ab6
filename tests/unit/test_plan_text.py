"""What a plan prints: the verdict's shape, rows, misses in words, the whole sum, and figures that add up."""

import json
import re
from dataclasses import replace

import pytest
from plan_questions import answer, question

from meshwright.plan.as_json import explain_json, plan_json
from meshwright.plan.engines import engine
from meshwright.plan.explain import explain_text
from meshwright.plan.misses import closest_misses
from meshwright.plan.search import Answer, predict, search
from meshwright.plan.text import COLUMNS, assumptions, expected_errors, plan_text, table_rows, verdict, why
from meshwright.plan.words import MESSAGE_TERMS, gib, seconds, size
from meshwright.report.plan_html import plan_page
from meshwright.spec.cluster import GIB
from meshwright.spec.presets import preset

FITS = re.compile(
    r"fits: (\d+) of (\d+) layouts on 8 x 79\.2 GiB;"
    r" best (?:(?:dp|tp|pp)\d+ )+zero[0-3], \d+\.\d GiB, [\d.]+ m?s/step\Z"
)


@pytest.fixture(scope="module")
def found() -> Answer:
    return answer("llama2-13b", 8, "a100-80g", batch=16, seq=2048)


def test_the_verdict_is_the_first_line(found: Answer) -> None:
    line = plan_text(found).splitlines()[0]
    match = FITS.match(line)
    assert match, line
    assert (int(match[1]), int(match[2])) == (found.fits, found.considered)
    assert found.fitting[0].name in line


def test_verdicts_of_what_does_not_fit_or_only_just() -> None:
    over = answer("llama2-13b", 2, "a100-80g", batch=16, seq=2048)
    assert re.match(
        r"does not fit: 0 of \d+ layouts on 2 x 79\.2 GiB; closest .+ needs [\d.]+ GiB per device\Z", verdict(over)
    )
    least = answer("llama2-13b", 8, "a100-80g", batch=16, seq=2048, objective="memory").fitting[0].needed
    tight = answer("llama2-13b", 8, "a100-80g", batch=16, seq=2048, max_memory=least * 1.01)
    assert verdict(tight).startswith("tight: 0 of ")
    assert "\n1  dp" in plan_text(tight), "the table shows what is tight"


def test_rows_say_what_the_predictions_say(found: Answer) -> None:
    rows = table_rows(list(found.fitting[:5]))
    for candidate, cells in zip(found.fitting, rows, strict=False):
        row = dict(zip(COLUMNS, cells, strict=True))
        time = candidate.time
        assert row["layout"].startswith(candidate.name)
        assert row["GiB"].split()[0] == f"{candidate.needed / GIB:.1f}"
        assert row["step"] == seconds(time.seconds)
        messages = sum(time.terms.get(term, 0.0) for term in MESSAGE_TERMS)
        assert row["comm"] == f"{messages / time.seconds:.0%}"
        assert row["MFU"] == f"{time.mfu:.1%}"
        assert row["mbs x num"] == f"{candidate.job.batch.micro_batch_size} x {candidate.job.batch.micro_batch_num}"


def test_at_most_as_many_rows_as_asked_for(found: Answer) -> None:
    for top in (1, 3, 10):
        text = plan_text(found, top=top)
        assert len(re.findall(r"^ *\d+  (?:dp|tp|pp)\d", text, re.M)) == top


def test_one_phrase_why_names_the_largest_difference(found: Answer) -> None:
    best, other = found.fitting[0], next(c for c in found.fitting if c.job.layout.pipeline_stage == 8)
    assert "pipeline bubble" in why(other, best)
    tensor = next(c for c in found.fitting if c.job.layout.model_parallel == 8)
    assert "tensor messages" in why(tensor, best)


def test_misses_name_what_binds() -> None:
    spec = replace(preset("llama2-13b"), num_heads=20, num_kv_heads=20, head_dim=256)
    misses = {miss.name: miss.reason for miss in closest_misses(answer(spec, 8, "a100-80g", batch=12, seq=2048))}
    assert misses["tp8"] == "20 heads do not divide by 8"
    assert misses["dp8"] == "global batch 12 does not divide by 8 data ranks (8 or 16 would do)"
    assert "cannot fill 8 stages" not in misses
    plain = closest_misses(answer("llama2-13b", 8, "a100-80g", batch=16, seq=2048))
    zero = next(miss for miss in plain if miss.name == "dp8 zero0")
    # fp32 weights and both moments are 12 bytes, of which the optimizer's own are at least 8, per 13.0e9 parameters.
    stated = float(re.match(r"optimizer states alone ([\d.]+) GiB", zero.reason)[1])
    assert 13.0e9 * 8 / GIB <= stated <= 13.1e9 * 12 / GIB
    assert all(miss.needed > plain[0].needed * 0.99 for miss in plain if miss.kind == "memory")


def test_heads_and_key_value_heads_are_told_apart() -> None:
    misses = {miss.name: miss.reason for miss in closest_misses(answer("llama3-8b", 64, "h100", batch=64, seq=8192))}
    assert misses["tp16"] == "8 key/value heads do not divide by 16"
    assert misses["pp64"] == "32 layers cannot fill 64 stages"


def test_the_rate_of_attention_inside_documents_is_said_to_be_a_guess(found: Answer) -> None:
    isolated = replace(found.question, train=replace(found.question.train, isolate_documents=True))
    (more,) = set(assumptions(isolated)) - set(assumptions(found.question))
    assert more.startswith("isolated documents: attention over whole rows, at 50% of the rate of flash attention")


def test_the_whole_sum_adds_up(found: Answer) -> None:
    candidate = predict(found.question, next(c for c in found.fitting if c.job.layout.pipeline_stage == 2).job)
    told = explain_json(candidate)
    for stage in told["stages"]:
        worst = max(sum(moment["parts"].values()) for moment in stage["moments"])
        assert worst + stage["slack"] + stage["device_constant"] == pytest.approx(stage["device_total"])
    assert max(stage["device_total"] for stage in told["stages"]) == told["memory"]["device_total"]
    assert sum(told["time"]["terms"].values()) == pytest.approx(told["time"]["seconds"], rel=1e-6)
    text = explain_text(found.question, candidate)
    for stage in told["stages"]:
        assert f"= {stage['device_total'] / GIB:.2f}" in text
    for item in told["time"]["traffic"]:
        assert re.search(rf"^  {item['axis']} .*{re.escape(size(item['bytes']))}", text, re.M)
    assert "GiB per device" in text
    assert "stage 0: layers 0-19 | stage 1: layers 20-39" in text


def test_comm_fusion_is_a_term_of_memory_and_of_time() -> None:
    asked = question("llama2-13b", 8, "a100-80g", batch=16, seq=2048, fix="dp=8,zero=3,mbs=1,recompute=all")
    (one,) = search(asked).fitting
    four = predict(asked, replace(one.job, layout=replace(one.job.layout, comm_fusion=4)))
    assert four.needed > one.needed
    assert four.seconds != one.seconds
    count = {c.job.layout.comm_fusion: sum(t.messages for t in c.time.traffic if t.axis == "data") for c in (one, four)}
    assert count[4] < count[1]
    lines = [line for line in explain_text(asked, one).splitlines() if re.match(r" +\*?[1248]: ", line)]
    assert len(lines) == 4
    assert f"{count[4]} messages" in lines[2]


def test_json_says_what_the_text_says(found: Answer) -> None:
    values = json.loads(json.dumps(plan_json(found, top=10, override=["a=1"])))
    assert set(values) == {
        "verdict",
        "question",
        "considered",
        "predicted",
        "fitting",
        "tight",
        "seconds",
        "layouts",
        "misses",
        "override",
        "advice",
        "assumptions",
        "expected_error",
    }
    assert values["verdict"] == verdict(found)
    first = values["layouts"][0]
    assert first["memory"]["device_total"] == found.fitting[0].needed
    assert first["keys"]["train.global_batch_size"] == 16


def test_assumptions_and_errors_are_stated(found: Answer) -> None:
    told = " ".join(assumptions(found.question))
    for fact in ("A100 SXM 80GB", "NVLink3", "global_batch_size 16", "seq_length 2048", "92%", "O2"):
        assert fact in told
    assert expected_errors(found.question)


def test_errors_come_from_the_nearest_measurements() -> None:
    asked = question("llama2-13b", 8, "h100", batch=16, seq=2048, framework="nanotron")
    (memory, time) = expected_errors(asked)
    assert "nanotron on hopper" in memory
    assert "nanotron on hopper" in time
    assert "there are none of" not in memory + time
    ours = expected_errors(replace(asked, engine=engine("meshwright")))
    assert ours
    assert all(line.endswith("there are none of Meshwright on hopper)") for line in ours)


def test_the_page_is_one_file_that_loads_nothing(found: Answer) -> None:
    page = plan_page(found, override="a=1")
    assert "http" not in page.replace("http-equiv", "")
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert page.count("<svg") == 3, "memory, time, pipeline"
    assert verdict(found) in page
    # The parts of each bar of memory add up to the figure at its end.
    memory = page.split("<svg")[1].split("</svg>")[0]
    bars = re.split(r'<text x="210" [^>]*>', memory)[1:]
    assert len(bars) == 10
    for bar in bars:
        parts = [float(part) for part in re.findall(r" ([\d.e+-]+) GiB</title>", bar)]
        total = float(re.search(r'<text x="[\d.]+" y="[\d.]+">([\d.]+)</text>', bar)[1])
        assert sum(parts) == pytest.approx(total, rel=0.02)


def test_the_page_of_a_refusal_shows_what_is_over() -> None:
    page = plan_page(answer("llama2-13b", 2, "a100-80g", batch=16, seq=512))
    assert "does not fit" in page
    assert page.count("<svg") == 1
    assert "What would fit" in page


def test_units() -> None:
    assert (gib(48.13 * GIB), gib(0.01 * GIB)) == ("48.1 GiB", "0.010 GiB")
    assert [seconds(x) for x in (1.449, 0.0123, 0.0, 12.0, 2e-6)] == ["1.45 s", "12.3 ms", "0 s", "12 s", "2 us"]
    assert [size(x) for x in (3.21e9, 4.1e8, 12.0)] == ["3.21 GB", "410 MB", "12 B"]
