// Chat templates: what is refused and how it is told, bounds, and whose words are whose.
#include "tokenizer/chat_template.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm {
namespace {

using nlohmann::json;
using test::Ids;

ChatText render(const std::string& source, const std::vector<ChatMessage>& messages = {}) {
  return ChatTemplate(source, "T").render(messages, true, {{"bos_token", "<s>"}});
}

void check_refused(const std::string& source, ExitCode code, const std::string& message) {
  INFO(source.substr(0, 200));
  try {
    render(source, {{"user", "hi"}});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK_THAT(error.what(), Catch::StartsWith(message));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
}

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

TEST_CASE("a template that cannot be used is refused with its line") {
  using enum ExitCode;
  check_refused("a\n\n{% include 'x' %}", kUnsupported, "T, line 3: the tag \"include\"");
  check_refused("{{ 'x' | urlize }}", kUnsupported, "T, line 1: the filter \"urlize\"");
  check_refused("\n{% if x is odder %}{% endif %}", kUnsupported, "T, line 2: the test \"odder\"");
  check_refused("{{ f(*x) }}", kUnsupported, "T, line 1: arguments with *");
  check_refused("{% for x in y recursive %}{% endfor %}", kUnsupported, "T, line 1: \"recursive\"");
  check_refused("{% if x %}\n\n", kModelFile, "T, line 2: expected {% endif %}");
  check_refused("\n{{ 'a", kModelFile, "T, line 2: a string is not closed");
  check_refused("{{ 1 $ 2 }}", kModelFile, "T, line 1: unexpected character \"$\"");
  check_refused("{{ '\\ud800' }}", kModelFile, "T, line 1: the escape \\u");
  check_refused("\xFF", kModelFile, "T is not UTF-8");
  // What goes wrong only when it runs.
  check_refused("{# two\nlines #}{{ nobody.home }}", kModelFile,
                "T, line 2: 'nobody' is undefined");
  check_refused("{{ 9223372036854775807 + 1 }}", kModelFile, "T, line 1: an integer of more");
  check_refused("\n{{ raise_exception('no ' ~ messages[0].content) }}", kUsage,
                "T, line 2: the template refuses this conversation: no hi");
}

TEST_CASE("a hostile template ends soon, whatever it does") {
  using enum ExitCode;
  const std::string too_much = "T, line 1: the template does more than";
  check_refused("{% for i in range(9999999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                kUnsupported, too_much);
  check_refused("{{ 'a' * 99999999999 }}", kUnsupported, too_much);
  check_refused("{{ [0] * 99999999999 }}", kUnsupported, too_much);
  check_refused(
      "{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}"
      "{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
      kUnsupported, too_much);
  // Lists that share their parts: 2^60 items in 60 lists.
  check_refused(
      "{% set n = namespace(l=[1]) %}"
      "{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
      kUnsupported, too_much);
  check_refused(
      "{% set n = namespace(l=[]) %}"
      "{% for i in range(500) %}{% set n.l = [n.l] %}{% endfor %}",
      kUnsupported, "T, line 1: lists nested deeper");
  check_refused(
      "{% set n = namespace(f={}) %}"
      "{% for i in range(9999) %}{% set n.f = {'a': n.f}.get %}{% endfor %}",
      kUnsupported, "T, line 1: lists nested deeper");
  check_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kUnsupported,
                "T, line 1: calls or expressions nested");
  check_refused("{{ " + repeated("(", 5000) + repeated(")", 5000) + " }}", kUnsupported,
                "T, line 1: nested deeper than");
  check_refused(repeated("{% if 1 %}", 5000), kUnsupported, "T, line 1: nested deeper than");
  check_refused("{{ 1" + repeated(" + 1", 5000) + " }}", kUnsupported, "T, line 1: an expression");
  check_refused("{{ x" + repeated(".x", 5000) + " }}", kUnsupported, "T, line 1: an expression");
  // A weight that has reached its end, and more.
  check_refused(
      "{% set n = namespace(x=[1]) %}{% for i in range(64) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
      "{% set d = {n.x: 1} %}{{ d[n.x] }}",
      kUnsupported, too_much);
  // Searches that compare most of what they look for at every place.
  const std::string needle = "{% set s = 'a' * 9000000 %}{% set t = 'b' ~ 'a' * 250 %}";
  check_refused(needle + "{% for i in range(99) %}{{ s.count(t) }}{% endfor %}", kUnsupported,
                too_much);
  check_refused(needle + "{% for i in range(99) %}{{ s.rsplit(t) | length }}{% endfor %}",
                kUnsupported, too_much);
  check_refused(needle + "{% for i in range(99) %}{{ t in s }}{% endfor %}", kUnsupported,
                too_much);
  // Many names, and long ones.
  const auto names = [](int n, const std::string& between, const std::string& value) {
    std::string list;
    for (int i = 0; i < n; ++i) {
      list += (i == 0 ? "" : between) + "n" + std::to_string(i) + value;
    }
    return list;
  };
  const std::string assignments = names(60'000, ",", "=1");
  check_refused(
      "{% with " + assignments + " %}{{ x" + repeated(" ~ x", 60'000) + " }}{% endwith %}",
      kUnsupported, too_much);
  check_refused("{% set " + names(50'000, "=1 %}{% set ", "") + "=1 %}", kUnsupported, too_much);
  check_refused("{% set n = namespace(" + assignments + ") %}", kUnsupported, too_much);
  check_refused("{% set n = dict(" + assignments + ") %}", kUnsupported, too_much);
  check_refused(
      "{% set n = namespace() %}{% set n." + names(40'000, "=1 %}{% set n.", "") + "=1 %}",
      kUnsupported, too_much);
  const std::string parameters = names(40'000, ",", "=1");
  check_refused("{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" + parameters + ") }}",
                kUnsupported, too_much);
  check_refused("{{ " + std::string(257, 'x') + " }}", kUnsupported,
                "T, line 1: a name of more than 256 bytes");
  check_refused("{{ 'x" + std::string(1 << 20, 'x') + "' }}", kUnsupported,
                "T has 1048585 bytes, supported are at most 1048576");
  CHECK(render("{{ " + std::string(256, 'x') + " }}").text.empty());
  // Long messages, in time linear in their length.
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += "a ";
  const ChatTemplate splits(
      "{% set c = messages[0].content %}{{ c.split() | length }} "
      "{{ c.split(' ', 3) | length }} {{ c.rsplit(none, 3) | length }} "
      "{{ c.rsplit(' ') | length }} {{ c.count('a') }}",
      "T");
  CHECK(splits.render({{{"user", words}}}, true, {}).text == "100000 4 4 100001 100000");
  // Deep, but not too deep.
  for (const int depth : {31, 40, 60}) {
    const std::string list = repeated("[", depth) + repeated("]", depth);
    CHECK(render("{{ " + list + " | tojson }}").text == list);
  }
  // A namespace that holds itself, and a long chain of them, are given back.
  CHECK(render("{% set n = namespace() %}{% set n.n = n %}{% for i in range(99999) %}"
               "{% set n.n = namespace(n=n.n) %}{% endfor %}ok")
            .text == "ok");
}

TEST_CASE("the words of messages are told from the template's, through every operation") {
  const auto marked = [](const std::string& source) {
    const ChatText chat = render(source, {{"user", " Ab cd "}});
    std::string text = chat.text;
    for (size_t i = chat.contents.size(); i-- > 0;) {
      text.insert(chat.contents[i].end, "]");
      text.insert(chat.contents[i].begin, "[");
    }
    return text;
  };
  const std::string c = "messages[0].content";
  CHECK(marked("<{{ " + c + " }}>") == "<[ Ab cd ]>");
  CHECK(marked("{{ '<' + " + c + " | trim + '>' }}") == "<[Ab cd]>");
  CHECK(marked("{{ " + c + " | upper ~ 1 }}") == "[ AB CD ]1");
  CHECK(marked("{{ " + c + "[1:3] }}{{ " + c + ".split()[1] }}") == "[Abcd]");
  CHECK(marked("{{ " + c + ".replace(' ', '-') }}") == "-[Ab]-[cd]-");
  CHECK(marked("{{ 'a-b'.replace('-', " + c + ") }}") == "a[ Ab cd ]b");
  CHECK(marked("{{ '<' ~ " + c + ".split() | join('|') ~ '>' }}") == "<[Ab]|[cd]>");
  CHECK(marked("{{ messages | tojson }}") == "[{\"role\": \"user\", \"content\": \"[ Ab cd ]\"}]");
  CHECK(marked("{{ [" + c + "] }}") == "['[ Ab cd ]']");
  CHECK(marked("{% set x %}<{{ " + c + " }}>{% endset %}{{ x | title }}") == "<[ Ab Cd ]>");
  CHECK(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(" + c + ") | indent }}") ==
        "<[ Ab cd ]>");
  CHECK(marked("{% for x in " + c + " %}{{ x }}.{% endfor %}") == "[ ].[A].[b].[ ].[c].[d].[ ].");
  CHECK(marked("{{ messages[0].role }}{{ bos_token }}") == "user<s>");
}

TEST_CASE("template: a refusal is one line, and not a long one") {
  const auto message_of = [](const std::string& content) {
    try {
      render("{{ raise_exception(messages[0].content) }}", {{"user", content}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message_of("a\n\tb\x1B[2J").ends_with(": a  b [2J"));
  const std::string cut = message_of(std::string(10'000, 'x') + "\u00E9");
  CHECK(cut.size() < 600);
  CHECK(cut.ends_with("x..."));
  for (int n = 0; n < 4; ++n) {  // wherever the cut falls, no half character is left
    std::string text(static_cast<size_t>(n), 'x');
    while (text.size() < 1000) text += "\u20AC";
    CHECK(find_invalid_utf8(message_of(text)) == std::string::npos);
  }
}

TEST_CASE("encode: special tokens count only outside of plain ranges") {
  auto tree = test::tiny_tokenizer({{"e", "o"}});
  test::add_token(tree, "<eo>")["special"] = true;  // 257
  test::add_token(tree, "[eo]");                    // 258, not special
  for (const bool normalized : {false, true}) {
    INFO(normalized);
    tree["added_tokens"][0]["normalized"] = normalized;
    for (const bool nfc : {false, true}) {
      INFO(nfc);
      tree["normalizer"] = nfc ? json{{"type", "NFC"}} : json();
      const Tokenizer tokenizer = Tokenizer::from_json(tree.dump(), "tiny");
      const auto encode = [&](const std::string& text, std::vector<TextRange> plain) {
        return tokenizer.encode(text, plain);
      };
      const Ids text = {'<', 256, '>'};
      CHECK(encode("<eo>", {}) == Ids{257});
      CHECK(encode("<eo>", {{0, 4}}) == text);
      CHECK(encode("<eo>", {{1, 2}}) == text);  // one byte of it is enough
      CHECK(encode("<eo><eo><eo>", {{4, 8}}) == Ids{257, '<', 256, '>', 257});
      CHECK(encode("<eo>x<eo>", {{4, 5}}) == Ids{257, 'x', 257});
      CHECK(encode("[eo]", {{0, 4}}) == Ids{258});
      // What is no token is merged across the borders of ranges.
      CHECK(encode("eo", {{1, 2}}) == Ids{256});
      // NFC moves what comes behind "e" and the acute accent.
      const Ids accented = nfc ? Ids{0xC3, 0xA9} : Ids{'e', 0xCC, 0x81};
      Ids expected = accented;
      expected.insert(expected.end(), {257, '<', 256, '>', 257});
      CHECK(encode("e\xCC\x81<eo><eo><eo>", {{0, 3}, {7, 11}}) == expected);
    }
  }
}

TEST_CASE("encode: a normalizer makes no special token of a plain range") {
  auto tree = test::tiny_tokenizer({{"e", "o"}});
  auto& token = test::add_token(tree, "<eo>");  // 257
  token["special"] = true;
  token["normalized"] = true;
  const auto encode = [&](const std::string& text, std::vector<TextRange> plain) {
    return Tokenizer::from_json(tree.dump(), "tiny").encode(text, plain);
  };
  const Ids text = {'<', 256, '>'};
  // U+FF1C, of three bytes, becomes "<".
  tree["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "\uFF1C"}}}, {"content", "<"}};
  CHECK(encode("\uFF1Ceo>", {}) == Ids{257});
  CHECK(encode("\uFF1Ceo>", {{0, 6}}) == text);
  CHECK(encode("<eo>\uFF1C<eo>", {{4, 7}}) == Ids{257, '<', 257});
  // Which of the two was written is not known any more: neither is taken for one.
  CHECK(encode("\uFF1Ceo><eo>", {{0, 6}}) == Ids{'<', 256, '>', '<', 256, '>'});
  // One that is looked for with what the normalizer puts in front.
  tree["normalizer"] = {{"type", "Prepend"}, {"prepend", "x"}};
  CHECK(encode("<eo>y", {{4, 5}}) == Ids{257, 'y'});
  CHECK(encode("<eo>y", {{0, 4}}) == Ids{'x', '<', 256, '>', 'y'});
}

}  // namespace
}  // namespace edgellm
