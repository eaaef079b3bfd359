#include "apps/compare/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "apps/common/text_format.h"
#include "base/text.h"

namespace edgellm::compare {
namespace {

Measured<double> to_double(const Measured<int64_t>& value) {
  return value.map([](int64_t v) { return static_cast<double>(v); });
}

// The median of the answers that have the value; else the first reason why one has not.
template <class F>
Measured<double> median_of(const Comparison& comparison, Sample Pair::*side, const F& value) {
  std::vector<double> values;
  Measured<double> missing;
  for (const Pair& pair : comparison.pairs) {
    const Measured<double> one = value(pair.*side);
    if (one) {
      values.push_back(*one);
    } else {
      missing = one;
    }
  }
  if (values.empty()) return missing;
  return summarise(values).median;
}

using Metric = std::function<Measured<double>(const Sample&)>;

VerdictRow row_of(const Comparison& comparison, const std::string& name, const std::string& unit,
                  bool more_is_better, const Metric& metric) {
  VerdictRow row = {.metric = name,
                    .unit = unit,
                    .more_is_better = more_is_better,
                    .ours = median_of(comparison, &Pair::ours, metric),
                    .theirs = median_of(comparison, &Pair::theirs, metric),
                    .ratio = NotAvailable{"no pair has both values"}};
  std::vector<double> ratios;
  for (const Pair& pair : comparison.pairs) {
    const Measured<double> ours = metric(pair.ours);
    const Measured<double> theirs = metric(pair.theirs);
    if (!ours || !theirs) continue;
    const double ratio = more_is_better ? *ours / *theirs : *theirs / *ours;
    if (std::isfinite(ratio)) ratios.push_back(ratio);
  }
  if (!ratios.empty()) {
    row.ratio = summarise(ratios);
  } else if (!row.theirs) {
    row.ratio = row.theirs.missing();
  } else if (!row.ours) {
    row.ratio = row.ours.missing();
  }
  return row;
}

Metric latency_metric(int64_t (*of)(const LatencySummary&)) {
  return [of](const Sample& sample) -> Measured<double> {
    if (sample.inter_token_ns.empty()) {
      return NotAvailable{sample.decode_tps ? "an answer of one token has no inter-token latency"
                                            : sample.decode_tps.reason()};
    }
    return static_cast<double>(of(summarise_latencies(sample.inter_token_ns)));
  };
}

bool is_ternary(const std::string& quantisation) {
  constexpr std::array<const char*, 8> kNames = {"ternary", "TQ1_0", "TQ2_0",  "I2_S",
                                                 "TL1",     "TL2",   "STQ1_0", "IQ2_BN"};
  return std::any_of(kNames.begin(), kNames.end(), [&](const char* name) {
    return quantisation.find(name) != std::string::npos;
  });
}

std::string milliseconds(double ns) { return fixed(ns / 1e6, ns < 1e7 ? 3 : 1) + " ms"; }

// Rows as a Markdown table whose columns stand below each other; all but the first to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 3);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string spaces(widths[i] - rows[r][i].size(), ' ');
      text += i == 0 ? "| " + rows[r][i] + spaces + " |" : " " + spaces + rows[r][i] + " |";
    }
    text += '\n';
    if (r > 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      text += (i == 0 ? "| " : " ") + std::string(widths[i] - (i == 0 ? 0 : 1), '-') +
              (i == 0 ? " |" : ": |");
    }
    text += '\n';
  }
  return text;
}

}  // namespace

SameWeights decide_same_weights(bool stated, uint64_t our_parameters,
                                const peers::PeerInfo& theirs) {
  if (theirs.parameters) {
    const auto ours = static_cast<double>(our_parameters);
    const double difference = std::abs(static_cast<double>(*theirs.parameters) - ours) / ours;
    // Programs differ in whether norms or a tied head count.
    if (difference > 0.02) {
      return {false, human_count(our_parameters) + " parameters here, " +
                         human_count(*theirs.parameters) + " there"};
    }
  }
  if (theirs.quantisation && !is_ternary(*theirs.quantisation)) {
    return {false, "ternary here, " + *theirs.quantisation + " there"};
  }
  if (stated) return {true, "you say so, and nothing that the server tells contradicts it"};
  return {false, "nothing shows that they are the same; --same-weights says so where you know it"};
}

std::vector<VerdictRow> verdict(const Comparison& comparison) {
  const auto value = [](auto Sample::*field) -> Metric {
    return [field](const Sample& sample) -> Measured<double> { return sample.*field; };
  };
  const auto time = [](Measured<int64_t> Sample::*field) -> Metric {
    return [field](const Sample& sample) { return to_double(sample.*field); };
  };
  const Metric total = [](const Sample& sample) { return static_cast<double>(sample.total_ns); };
  std::vector<VerdictRow> rows = {
      row_of(comparison, "decode", "tok/s", true, value(&Sample::decode_tps)),
      row_of(comparison, "text", "bytes/s", true, value(&Sample::text_bytes_per_s)),
      row_of(comparison, "prefill", "tok/s", true, value(&Sample::prefill_tps)),
      row_of(comparison, "TTFT", "ms", false, time(&Sample::ttft_ns)),
      row_of(comparison, "whole answer", "ms", false, total),
      row_of(comparison, "inter-token p50", "ms", false,
             latency_metric([](const LatencySummary& latencies) { return latencies.p50_ns; })),
      row_of(comparison, "inter-token p99", "ms", false,
             latency_metric([](const LatencySummary& latencies) { return latencies.p99_ns; })),
      row_of(
          comparison, "jitter (p99 - p50)", "ms", false,
          latency_metric([](const LatencySummary& latencies) { return latencies.jitter_ns(); }))};
  VerdictRow memory = {.metric = "memory",
                       .unit = "bytes",
                       .more_is_better = false,
                       .ours = static_cast<double>(comparison.ours.memory.total()),
                       .theirs = comparison.theirs.memory_bytes.map(
                           [](uint64_t bytes) { return static_cast<double>(bytes); }),
                       .ratio = NotAvailable{"not measured"}};
  memory.ratio = memory.theirs.map([&](double theirs) {
    const double ratio = theirs / *memory.ours;
    return summarise(std::span(&ratio, 1));
  });
  rows.push_back(memory);
  return rows;
}

LatencySummary pooled_latencies(const Comparison& comparison, Sample Pair::*side) {
  std::vector<int64_t> latencies;
  for (const Pair& pair : comparison.pairs) {
    const std::vector<int64_t>& of_answer = (pair.*side).inter_token_ns;
    latencies.insert(latencies.end(), of_answer.begin(), of_answer.end());
  }
  return summarise_latencies(latencies);
}

std::vector<std::string> remarks(const Comparison& comparison) {
  std::vector<std::string> sentences;
  const std::string& server = comparison.theirs.software;
  size_t n_cached = 0;
  size_t n_without_prompt_figure = 0;
  size_t n_short = 0;
  size_t n_same = 0;
  int64_t longest_prompt = 0;
  bool pieces_differ = false;
  for (const Pair& pair : comparison.pairs) {
    const Sample& theirs = pair.theirs;
    // A few tokens (a BOS, the beginning of a nonce) are the same in every prompt.
    if (theirs.own.cached_tokens && *theirs.own.cached_tokens > 8) ++n_cached;
    if (!theirs.own.prompt_tokens) ++n_without_prompt_figure;
    if (theirs.prompt_tokens) longest_prompt = std::max(longest_prompt, *theirs.prompt_tokens);
    if (theirs.tokens && *theirs.tokens < comparison.max_tokens) ++n_short;
    if (theirs.tokens && std::abs(*theirs.tokens - theirs.pieces) > 2) pieces_differ = true;
    if (theirs.text == pair.ours.text) ++n_same;
  }
  const size_t n_pairs = comparison.pairs.size();
  const auto of_pairs = [&](size_t n) {
    return std::to_string(n) + " of " + std::to_string(n_pairs);
  };
  // A count that is far below the others' is of a prompt that was in part in the cache.
  for (const Pair& pair : comparison.pairs) {
    const auto& count = pair.theirs.prompt_tokens;
    if (!pair.theirs.own.cached_tokens && count && *count * 10 < longest_prompt * 9) ++n_cached;
  }
  sentences.push_back(
      "Tokens are each side's own: models with different vocabularies say the same "
      "in different numbers of them. The row \"text\" has no such bias.");
  sentences.push_back(
      "Times of " + server + " include HTTP" +
      (comparison.theirs_is_local ? "." : " and the network between two machines."));
  if (!comparison.same_weights.same) {
    sentences.push_back(
        "The weights are not the same: the ratios compare two models as much as two "
        "programs.");
  }
  sentences.push_back("Identical answers: " + of_pairs(n_same) + ".");
  if (n_cached > 0) {
    sentences.push_back("In " + of_pairs(n_cached) + " answers " + server +
                        " took a part of the prompt from its cache: its TTFT and prefill are too "
                        "good there.");
  }
  if (n_without_prompt_figure > 0) {
    const auto& figure = comparison.pairs.front().theirs.own.prompt_tokens;
    sentences.push_back("In " + of_pairs(n_without_prompt_figure) +
                        " answers there is no prompt "
                        "figure of " +
                        server + (figure ? "." : ": " + figure.reason() + "."));
  }
  if (n_short > 0) {
    sentences.push_back("In " + of_pairs(n_short) + " answers " + server + " ended before " +
                        std::to_string(comparison.max_tokens) + " tokens.");
  }
  if (pieces_differ) {
    sentences.push_back(server +
                        " sends other pieces than single tokens: its inter-token latency is the "
                        "time between pieces of text.");
  }
  return sentences;
}

std::string value_text(const Measured<double>& value, const std::string& unit) {
  if (!value) return "n/a";
  if (unit == "ms") return milliseconds(*value);
  if (unit == "bytes") return human_bytes(static_cast<uint64_t>(*value));
  return fixed(*value, 2) + " " + unit;
}

std::string ratio_text(const VerdictRow& row) {
  if (!row.ratio) return "n/a";
  const Summary& ratio = *row.ratio;
  std::string text = fixed(ratio.median, 2) + "x";
  if (ratio.n > 1) text += " (" + fixed(ratio.min, 2) + " to " + fixed(ratio.max, 2) + ")";
  return text;
}

std::vector<std::pair<std::string, std::string>> facts(const OurInfo& ours) {
  return {{"program", "edgellm " + ours.version},
          {"model", ours.path + " (id " + ours.id + ")"},
          {"architecture", ours.architecture},
          {"parameters", human_count(ours.parameters)},
          {"quantisation", "ternary, 2 bits a weight; KV cache " + ours.kv_type},
          {"bytes", human_bytes(ours.bytes)},
          {"context", std::to_string(ours.context)},
          {"device", ours.device},
          {"memory", human_bytes(ours.memory.total())}};
}

std::vector<std::pair<std::string, std::string>> facts(const peers::PeerInfo& theirs) {
  std::vector<std::pair<std::string, std::string>> known = {
      {"program", theirs.software + (theirs.version ? " " + *theirs.version : "") + " at " +
                      theirs.address + ", " + theirs.api},
      {"model", theirs.model}};
  // Names of what is missing, by the reason: one line instead of one for each.
  std::vector<std::pair<std::string, std::vector<std::string>>> missing;
  const auto add_missing = [&](const std::string& name, const std::string& reason) {
    const auto same = std::find_if(missing.begin(), missing.end(),
                                   [&](const auto& entry) { return entry.first == reason; });
    if (same == missing.end()) {
      missing.push_back({reason, {name}});
    } else {
      same->second.push_back(name);
    }
  };
  const auto add = [&](const std::string& name, const auto& value, const auto& text) {
    if (value) {
      known.emplace_back(name, text(*value));
    } else {
      add_missing(name, value.reason());
    }
  };
  const auto as_is = [](const std::string& text) { return text; };
  const auto bytes = [](uint64_t n) { return human_bytes(n); };
  if (!theirs.version) add_missing("version", theirs.version.reason());
  add("architecture", theirs.architecture, as_is);
  add("parameters", theirs.parameters, [](uint64_t n) { return human_count(n); });
  add("quantisation", theirs.quantisation, as_is);
  add("bytes", theirs.bytes, bytes);
  add("context", theirs.context, [](int64_t n) { return std::to_string(n); });
  add("device", theirs.device, as_is);
  add("memory", theirs.memory_bytes, [&](uint64_t n) {
    return human_bytes(n) + (theirs.gpu_memory_bytes
                                 ? ", of it on the GPU " + human_bytes(*theirs.gpu_memory_bytes)
                                 : std::string());
  });
  for (const auto& [reason, names] : missing) {
    known.emplace_back("not known", join(names, ", ") + " (" + reason + ")");
  }
  return known;
}

std::vector<std::vector<std::string>> own_figures(const Comparison& comparison) {
  const auto rate = [](Measured<double> peers::ServerFigures::*of) -> Metric {
    return [of](const Sample& sample) { return sample.own.*of; };
  };
  const auto field = [](Measured<int64_t> peers::ServerFigures::*of) -> Metric {
    return [of](const Sample& sample) { return to_double(sample.own.*of); };
  };
  using Figures = peers::ServerFigures;
  const auto shown_value = [](const Measured<double>& value, const std::string& unit) {
    return value ? value_text(value, unit) : "n/a (" + value.reason() + ")";
  };
  const auto row = [&](const std::string& name, const std::string& unit,
                       const Metric& metric) -> std::vector<std::string> {
    return {name, shown_value(median_of(comparison, &Pair::ours, metric), unit),
            shown_value(median_of(comparison, &Pair::theirs, metric), unit)};
  };
  return {row("prompt rate", "tok/s", rate(&Figures::prompt_tps)),
          row("prompt time", "ms", field(&Figures::prompt_ns)),
          row("decode rate", "tok/s", rate(&Figures::eval_tps)),
          row("decode time", "ms", field(&Figures::eval_ns)),
          row("whole answer", "ms", field(&Figures::total_ns))};
}

std::vector<std::vector<std::string>> verdict_table(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows = {{"by the same wall clock", "edgellm",
                                                 comparison.theirs.software,
                                                 "ratio (range over pairs)"}};
  for (const VerdictRow& row : verdict(comparison)) {
    rows.push_back({row.metric, value_text(row.ours, row.unit), value_text(row.theirs, row.unit),
                    ratio_text(row)});
  }
  return rows;
}

std::vector<std::vector<std::string>> latency_table(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows = {
      {"inter-token latency", "n", "mean", "p50", "p90", "p95", "p99", "max"}};
  for (const auto& [name, side] : {std::pair{std::string("edgellm"), &Pair::ours},
                                   std::pair{comparison.theirs.software, &Pair::theirs}}) {
    const LatencySummary latencies = pooled_latencies(comparison, side);
    if (latencies.n == 0) {
      rows.push_back({name, "0", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a"});
      continue;
    }
    const auto ms = [](auto ns) { return milliseconds(static_cast<double>(ns)); };
    rows.push_back({name, std::to_string(latencies.n), ms(latencies.mean_ns), ms(latencies.p50_ns),
                    ms(latencies.p90_ns), ms(latencies.p95_ns), ms(latencies.p99_ns),
                    ms(latencies.max_ns)});
  }
  return rows;
}

std::string to_text(const Comparison& comparison) {
  const auto ours = facts(comparison.ours);
  const auto theirs = facts(comparison.theirs);
  std::string text;
  const auto side = [&](const std::string& name, const auto& lines) {
    text += name + "\n";
    for (const auto& [label, value] : lines) {
      text += "  " + label + std::string(14 - std::min<size_t>(13, label.size()), ' ') +
              printable_path(value) + "\n";
    }
  };
  side("A: edgellm", ours);
  side("B: " + comparison.theirs.software, theirs);
  text += std::string("same weights: ") + (comparison.same_weights.same ? "yes" : "no") + " (" +
          printable_path(comparison.same_weights.reason) + ")\n\n";
  text += counted(static_cast<int64_t>(comparison.pairs.size()), "pair") +
          " in the order A B B A after " + counted(comparison.warmups, "warm-up") +
          "; the prompt is " + comparison.prompt_source + " after a nonce, the answer " +
          std::to_string(comparison.max_tokens) + " tokens at most, temperature 0.\n\n";

  std::vector<std::vector<std::string>> rows = own_figures(comparison);
  rows.insert(rows.begin(), {"by each side's own clock", "edgellm", comparison.theirs.software});
  text += table(rows) + "\n" + table(latency_table(comparison)) + "\n";
  for (const std::string& sentence : remarks(comparison)) text += wrapped("- " + sentence, 100, 2);
  text += "\n" + table(verdict_table(comparison)) + "A ratio above 1 is in edgellm's favour.\n";
  return text;
}

}  // namespace edgellm::compare
