#include "apps/generate/chat_input.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <utility>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/lines.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// Where lines come from.
class ChatInput::Lines {
 public:
  virtual ~Lines() = default;
  virtual bool is_terminal() const = 0;
  // `goes_on`: inside of a message. A line is without its newline.
  virtual Event read_line(bool goes_on, std::string& line) = 0;
  virtual void remember(const std::string& message) = 0;
};

// A pipe, a file, or a terminal of which stderr is no part.
class ChatInput::PlainLines : public Lines {
 public:
  bool is_terminal() const override { return false; }

  Event read_line(bool, std::string& line) override {
    Line read;
    if (reader_.next(read) == LineReader::Status::kEnd) return Event::kEnd;
    line = std::move(read.text);
    return Event::kMessage;
  }

  void remember(const std::string&) override {}

 private:
  LineReader reader_{STDIN_FILENO,
                     "standard input",
                     {.blame = ExitCode::kRuntime,
                      .max_line_bytes = SIZE_MAX,  // a message is kept whole anyway
                      .from_here = true,
                      .wait = await_input}};
};

class ChatInput::EditedLines : public Lines {
 public:
  EditedLines() : history_(history_init()) {
    // libedit reads characters in the locale's encoding, and messages are UTF-8.
    setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    editor_.reset(el_init("edgellm", stdin, stderr, stderr));
    if (!editor_ || !history_) throw Error(ExitCode::kRuntime, "the line editor does not start");
    EditLine* const editor = editor_.get();
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, prompt);
    el_set(editor, EL_GETCFN, read_character);
    el_set(editor, EL_EDITOR, "emacs");
    // Between two lines the terminal also hands on what is typed as it is and does not show it: it
    // appears at the next prompt. A terminal that collects lines would drop a Ctrl-D.
    el_set(editor, EL_SETTY, "-x", "-icanon", "-echo", nullptr);
    HistEvent event;
    constexpr int kRemembered = 1000;
    history(history_.get(), &event, H_SETSIZE, kRemembered);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    el_set(editor, EL_HIST, history, history_.get());
    el_source(editor, nullptr);  // the user's own ~/.editrc
    el_set(editor, EL_SIGNAL, 0);
  }

  bool is_terminal() const override { return true; }

  Event read_line(bool goes_on, std::string& line) override {
    goes_on_ = goes_on;
    interrupted_ = false;
    el_resize(editor_.get());
    int n = 0;
    const char* const bytes = el_gets(editor_.get(), &n);
    throw_unless_interrupt();
    if (interrupted_) {
      take_interrupt();
      el_reset(editor_.get());
      std::fputs("\n", stderr);
      return Event::kInterrupted;
    }
    if (bytes == nullptr || n <= 0) {
      std::fputs("\n", stderr);
      return Event::kEnd;
    }
    line.assign(bytes, static_cast<size_t>(n));
    if (line.ends_with('\n')) line.pop_back();
    return Event::kMessage;
  }

  void remember(const std::string& message) override {
    HistEvent event;
    history(history_.get(), &event, H_ENTER, message.c_str());
  }

 private:
  struct Free {
    void operator()(EditLine* editor) const { el_end(editor); }
    void operator()(History* history) const { history_end(history); }
  };

  static char* prompt(EditLine* editor) {
    static std::array<char, 5> first = {">>> "};
    static std::array<char, 5> more = {"... "};
    return self_of(editor)->goes_on_ ? more.data() : first.data();
  }

  static EditedLines* self_of(EditLine* editor) {
    EditedLines* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self;
  }

  static void throw_unless_interrupt() {
    if (received_signal() != SIGINT) throw_if_interrupted();
  }

  // libedit's own reading begins again after a signal; this one comes back.
  static int read_character(EditLine* editor, wchar_t* character) {
    std::mbstate_t state = {};
    for (;;) {
      char byte = 0;
      wait_for_input(STDIN_FILENO);
      if (received_signal() != 0) {
        self_of(editor)->interrupted_ = true;
        return -1;
      }
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return static_cast<int>(n);
      const size_t used = std::mbrtowc(character, &byte, 1, &state);
      constexpr auto kIncomplete = static_cast<size_t>(-2);
      constexpr auto kInvalid = static_cast<size_t>(-1);
      if (used == kInvalid) {
        state = {};  // what is no UTF-8 is not taken
      } else if (used != kIncomplete) {
        return 1;
      }
    }
  }

  std::unique_ptr<EditLine, Free> editor_;
  std::unique_ptr<History, Free> history_;
  bool goes_on_ = false;
  bool interrupted_ = false;
};

ChatInput::ChatInput() {
  if (edgellm::is_terminal(STDIN_FILENO) && edgellm::is_terminal(STDERR_FILENO)) {
    lines_ = std::make_unique<EditedLines>();
  } else {
    lines_ = std::make_unique<PlainLines>();
  }
}

ChatInput::~ChatInput() = default;

bool ChatInput::is_terminal() const { return lines_->is_terminal(); }

ChatInput::Event ChatInput::read(std::string& message) {
  constexpr std::string_view kQuotes = "\"\"\"";
  Event event;
  do {
    event = lines_->read_line(/*goes_on=*/false, message);
    if (event != Event::kMessage) return event;
  } while (message.find_first_not_of(" \t") == std::string::npos);

  std::string line;
  if (message.starts_with(kQuotes)) {
    message.erase(0, kQuotes.size());
    while (!message.ends_with(kQuotes)) {
      event = lines_->read_line(/*goes_on=*/true, line);
      if (event != Event::kMessage) return event;
      message += "\n" + line;
    }
    message.resize(message.size() - kQuotes.size());
    if (message.starts_with('\n')) message.erase(0, 1);
    if (message.ends_with('\n')) message.pop_back();
  } else {
    while (is_terminal() && message.ends_with('\\')) {
      event = lines_->read_line(/*goes_on=*/true, line);
      if (event != Event::kMessage) return event;
      message.back() = '\n';
      message += line;
    }
  }
  lines_->remember(message);
  return Event::kMessage;
}

}  // namespace edgellm
