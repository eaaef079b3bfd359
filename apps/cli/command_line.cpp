#include "apps/cli/command_line.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "apps/common/near_matches.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

using Takes = OptionSpec::Takes;

// What other programs call what edgellm does without an option, or by a command.
std::string advice_for_foreign_option(const std::string& name) {
  static const std::map<std::string, std::string> advice = {
      {"-ngl", "a model runs on the GPU as a whole; --device cuda or --device cpu chooses"},
      {"--n-gpu-layers",
       "a model runs on the GPU as a whole; --device cuda or --device cpu chooses"},
      {"--gpu-layers", "a model runs on the GPU as a whole; --device cuda or --device cpu chooses"},
      {"-i", "edgellm chat MODEL holds a conversation"},
      {"--interactive", "edgellm chat MODEL holds a conversation"},
      {"-cnv", "edgellm chat MODEL holds a conversation"},
      {"--conversation", "edgellm chat MODEL holds a conversation"},
      {"-hf", "edgellm pull hf:ORG/NAME downloads a model"},
      {"--hf-repo", "edgellm pull hf:ORG/NAME downloads a model"},
  };
  const auto found = advice.find(name);
  return found == advice.end() ? "" : "; " + found->second;
}

class WordReader {
 public:
  WordReader(const Command& command, std::span<const std::string> words, std::string full_name,
             std::string usage)
      : command_(command),
        words_(words),
        full_name_(std::move(full_name)),
        usage_(std::move(usage)) {}

  Asked read() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (word == "--") {
        free_words_.insert(free_words_.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_),
                           words_.end());
        break;
      }
      if (word.size() < 2 || !word.starts_with('-')) {
        free_words_.push_back(word);
      } else {
        read_option(word);
      }
      if (given_.contains(&command_.specs().front())) return Asked::kHelp;
    }
    place_free_words();
    check_company();
    hand_over();
    return Asked::kRun;
  }

 private:
  using Values = std::vector<std::string>;

  // A question is an end of its own.
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ExitCode::kUsage,
                message + (message.ends_with('?') ? "" : "; see " + full_name_ + " --help"));
  }

  const OptionSpec* find(const std::string& name) const {
    const auto is_in = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const OptionSpec& spec : command_.specs()) {
      if (!spec.is_positional() && is_in(spec.names)) return &spec;
    }
    for (const OptionSpec& spec : command_.specs()) {
      if (is_in(spec.aliases)) return &spec;
    }
    return nullptr;
  }

  // --top_k is --top-k.
  static std::string with_dashes(std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
  }

  [[noreturn]] void fail_unknown(const std::string& name) const {
    std::string message = "unknown option " + printable_path(name);
    const std::string advice = advice_for_foreign_option(name);
    if (!advice.empty()) fail(message + advice);
    // The long names: one letter more or less makes any short option into another.
    std::vector<std::string> names;
    bool takes_text = false;
    for (const OptionSpec& spec : command_.specs()) {
      takes_text |= spec.takes == Takes::kJoined;
      if (spec.is_positional()) continue;
      for (const std::string& known : spec.names) {
        if (known.starts_with("--")) names.push_back(known);
      }
    }
    message += did_you_mean(name, names);
    if (takes_text && !name.starts_with("--") && !message.ends_with('?')) {
      message += "; a text that begins with - stands behind --";
    }
    fail(message);
  }

  void read_option(const std::string& word) {
    if (word.starts_with("--")) {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const OptionSpec* spec = find(with_dashes(name));
      if (spec == nullptr) fail_unknown(name);
      const bool has_value = equals != std::string::npos;
      return take_values(*spec, name,
                         has_value ? std::optional(word.substr(equals + 1)) : std::nullopt);
    }
    if (const OptionSpec* spec = find(word)) return take_values(*spec, word, std::nullopt);
    // A short name with its value. What may as well be a long name with one dash is none.
    const std::string name = word.substr(0, 2);
    const OptionSpec* spec = find(name);
    const std::string whole = word.substr(0, word.find('='));
    std::string value = word.substr(2);
    if (value.starts_with('=')) value.erase(0, 1);
    const bool is_number = !value.empty() && value.find_first_of("0123456789") <= 1;
    const bool takes_text = spec != nullptr && spec->value.size() != 1;  // option_tree.h
    if (spec == nullptr || spec->takes == Takes::kNothing ||
        find("-" + with_dashes(whole)) != nullptr || !(takes_text || is_number)) {
      fail_unknown(whole);
    }
    take_values(*spec, name, value);
  }

  void take_values(const OptionSpec& spec, const std::string& name,
                   std::optional<std::string> attached) {
    if (spec.takes == Takes::kNothing) {
      if (attached) fail(name + " takes no value, but has '" + *attached + "'");
      given_[&spec];
      return;
    }
    Values values;
    if (attached) {
      values.push_back(std::move(*attached));
    } else if (at_ < words_.size() && (spec.takes != Takes::kMany || !is_option(words_[at_]))) {
      values.push_back(words_[at_++]);
    }
    while (spec.takes == Takes::kMany && at_ < words_.size() && !is_option(words_[at_])) {
      values.push_back(words_[at_++]);
    }
    if (values.empty()) {
      fail(name + " needs a value: " + name + " " +
           (spec.is_positional() ? spec.name() : spec.value));
    }
    Values& all = given_[&spec];
    if (spec.takes == Takes::kOne || spec.takes == Takes::kJoined) all.clear();
    all.insert(all.end(), values.begin(), values.end());
  }

  static bool is_option(const std::string& word) {
    return word.size() > 1 && word.starts_with('-');
  }

  // The words that belong to no option are the positional arguments, in their order.
  void place_free_words() {
    size_t next = 0;
    for (const OptionSpec& spec : command_.specs()) {
      if (!spec.is_positional() || given_.contains(&spec) || next == free_words_.size()) continue;
      const size_t end = spec.takes == Takes::kOne ? next + 1 : free_words_.size();
      given_[&spec].assign(free_words_.begin() + static_cast<std::ptrdiff_t>(next),
                           free_words_.begin() + static_cast<std::ptrdiff_t>(end));
      next = end;
    }
    if (next == free_words_.size()) return;
    std::string rest;
    for (size_t i = next; i < free_words_.size(); ++i) rest += " '" + free_words_[i] + "'";
    const std::string message = "unexpected" + rest + "; ";
    if (!command_.extra_words_advice().empty()) fail(message + command_.extra_words_advice());
    fail(message + "usage: " + usage_);
  }

  // "PROMPT ('tell me')", "--prompt"
  std::string as_given(const OptionSpec& spec) const {
    if (!spec.is_positional()) return spec.name();
    return spec.name() + " ('" + join(given_.at(&spec), " ") + "')";
  }

  void check_company() const {
    for (const OptionSpec& spec : command_.specs()) {
      if (!given_.contains(&spec)) {
        if (spec.required) fail(spec.name() + " is required; usage: " + usage_);
        continue;
      }
      for (const OptionSpec* other : spec.needs) {
        if (!given_.contains(other)) fail(spec.name() + " requires " + other->name());
      }
      for (const OptionSpec* other : spec.excludes) {
        if (!given_.contains(other)) continue;
        fail(as_given(spec) + " and " + as_given(*other) + " exclude each other; give one of them");
      }
    }
  }

  void hand_over() const {
    for (const OptionSpec& spec : command_.specs()) {
      const auto found = given_.find(&spec);
      if (found == given_.end()) continue;
      for (const std::string& value : found->second) {
        for (const auto& problem : spec.checks) {
          const std::string what = problem(value);
          if (!what.empty()) fail(spec.name() + ": " + what);
        }
      }
      try {
        spec.take(found->second);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage) throw;
        fail(error.what());
      }
    }
  }

  const Command& command_;
  std::span<const std::string> words_;
  const std::string full_name_;
  const std::string usage_;
  size_t at_ = 0;  // the next word
  Values free_words_;
  std::map<const OptionSpec*, Values> given_;
};

}  // namespace

Asked read_words(const Command& command, std::span<const std::string> words,
                 const std::string& full_name, const std::string& usage) {
  return WordReader(command, words, full_name, usage).read();
}

}  // namespace edgellm
