"""The page, the JSON document and the HTML file: what they say and what they never let through."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.doctor.public_cases import CASES, by_name, examined
from twostroke.record import (
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
    WindowRecord,
)
from twostroke_doctor import Fact, Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.html import MAX_BINS, html_page
from twostroke_doctor.report import WIDTH, document, json_lines, sentence, text_page

EVIL = '</title><script>alert("x")</script>\x1b[2J&\n"\'<img src=x onerror=y>'
VOID = {"meta", "br", "img"}


class Tags(HTMLParser):
    """Checks that tags nest, and collects what a browser would see."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.names, self.attributes, self.text = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def seen(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_the_sentence_says_phase_share_and_seconds():
    diagnosis, _ = examined(by_name("D01"))
    assert sentence(diagnosis).startswith("Prefill holds 95 % of the wait, 193 s of 203 s.")


def test_the_page_has_bar_evidence_cures_and_savings():
    diagnosis, parsed = examined(by_name("D04"))
    page = text_page(diagnosis, parsed)
    assert "PREFIX_MISS" in page and "[saves 33.9 s]" in page.replace("\n     ", " ")
    assert "a.log:1" in page and "█" in page
    assert "count_derived" in page
    assert all(len(line) <= WIDTH for line in page.splitlines())


def test_the_bars_are_as_long_as_their_shares():
    diagnosis, parsed = examined(by_name("D25"))
    page = text_page(diagnosis, parsed, ascii_only=True)
    bars = dict(re.findall(r"^  (\w+) +(#+) ", page, re.MULTILINE))
    assert len(bars["decode"]) == round(44 * 127.682 / 147.9887)
    assert page.isascii()


def test_unknown_names_what_is_missing():
    diagnosis, parsed = diagnose(Parsed()), Parsed()
    assert "UNKNOWN" in text_page(diagnosis, parsed) and "--url" in sentence(diagnosis)


def test_the_document_has_the_promised_keys():
    diagnosis, parsed = examined(by_name("D25"))
    whole = json.loads(json.dumps(document(diagnosis, parsed)))
    assert {"findings", "records"} <= whole.keys()
    for finding in whole["findings"]:
        assert {"code", "share", "seconds", "confidence", "evidence", "cures"} <= finding.keys()
        assert {"file", "line", "text"} == finding["evidence"][0].keys()
    assert whole["records"][0]["phases"]["decode_s"] == 127.682
    kinds = [item["kind"] for item in json_lines(diagnosis, parsed)]
    assert kinds == ["summary", "finding", "finding", "record"]


def test_every_case_makes_a_page_a_document_and_a_file():
    for case in CASES:
        diagnosis, parsed = examined(case)
        assert text_page(diagnosis, parsed).startswith(sentence(diagnosis)[:20])
        json.dumps(document(diagnosis, parsed), allow_nan=False)
        tags = seen(html_page(diagnosis, parsed))
        assert case.code in "".join(tags.text)


def test_nothing_of_a_log_reaches_the_page_unescaped():
    fact = Fact(
        name="full_reprocess", value=EVIL, engine="llama-server", label=EVIL, file=EVIL, line=1
    )
    record = RequestRecord(
        id=EVIL,
        model=EVIL,
        engine=EVIL,
        phases=PhaseTimes(prefill_s=9.0, decode_s=1.0),
        prompt=PromptTokens(new=9000),
        output=OutputTokens(total=50),
        meter=Meter(source="log", file=EVIL, lines=(2,), flags=(EVIL,)),
    )
    parsed = Parsed(unknown={EVIL: 3}, num_lines=9)
    parsed.add_all([fact, record])
    diagnosis = diagnose(parsed)
    page = html_page(diagnosis, parsed)
    tags = seen(page)
    assert "script" not in tags.names and "img" not in tags.names
    assert not any(name.startswith("on") for name, _ in tags.attributes)
    assert "\x1b" not in page and "\x1b" not in text_page(diagnosis, parsed)
    assert 'alert("x")' in "".join(tags.text), "shown as text, so that nothing is hidden"


def test_the_file_needs_nothing_from_elsewhere():
    diagnosis, parsed = examined(by_name("D25"))
    page = html_page(diagnosis, parsed)
    assert not re.search(r"https?:|//|@import|url\(", page)
    assert "default-src 'none'" in page


def test_a_long_log_is_drawn_in_bins():
    record = examined(by_name("D25"))[1].records[0]
    parsed = Parsed()
    parsed.add_all([replace(record, id=str(n)) for n in range(5000)])
    parsed.add_all(
        WindowRecord(engine="vllm", running=n % 7, waiting=n % 3, kv_usage=0.5) for n in range(5000)
    )
    page = html_page(diagnose(parsed), parsed)
    assert len(page) < 200_000 and page.count("<rect") <= 4 * MAX_BINS + 10
    assert "requests waiting" in page and "Wait of each request" in page


def test_a_short_log_has_no_series():
    diagnosis, parsed = examined(by_name("D25"))
    assert "in the order of the log" not in html_page(diagnosis, parsed)
