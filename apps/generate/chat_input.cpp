#include "apps/generate/chat_input.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <deque>
#include <iterator>
#include <string_view>
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
    // The terminal marks what is pasted, during an answer as well.
    std::fputs("\x1b[?2004h", stderr);
  }

  ~EditedLines() override { std::fputs("\x1b[?2004l", stderr); }

  bool is_terminal() const override { return true; }

  Event read_line(bool goes_on, std::string& line) override {
    goes_on_ = goes_on;
    interrupted_ = false;
    has_pasted_ = false;
    el_resize(editor_.get());
    int n = 0;
    const char* const bytes = el_gets(editor_.get(), &n);
    throw_unless_interrupt();
    if (interrupted_) {
      take_interrupt();
      const LineInfo* const typed = el_line(editor_.get());
      const bool was_empty = typed->lastchar == typed->buffer && !goes_on;
      el_reset(editor_.get());
      std::fputs("\n", stderr);
      if (was_empty) print_note("/bye or Ctrl-D ends the conversation");
      return Event::kInterrupted;
    }
    if (bytes == nullptr || n <= 0) {
      std::fputs("\n", stderr);
      return Event::kEnd;
    }
    line.assign(bytes, static_cast<size_t>(n));
    if (line.ends_with('\n')) line.pop_back();
    if (has_pasted_) line = without_marks(line);
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
    EditedLines& self = *self_of(editor);
    std::mbstate_t state = {};
    for (;;) {
      char byte = 0;
      const int n = self.read_byte(byte);
      if (n <= 0) return n;
      if (byte == '\x1b' && self.pasted_.empty() && self.skip_if_next(kPasteBegins)) {
        if (!self.read_paste()) return -1;
        continue;
      }
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

  // 1, or what read() returned. What was pasted or looked at comes first.
  int read_byte(char& byte) {
    for (std::deque<char>* early : {&pasted_, &looked_at_}) {
      if (early->empty()) continue;
      byte = early->front();
      early->pop_front();
      return 1;
    }
    for (;;) {
      wait_for_input(STDIN_FILENO);
      if (received_signal() != 0) {
        interrupted_ = true;
        return -1;
      }
      const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
      if (n >= 0 || errno != EINTR) return static_cast<int>(n);
    }
  }

  // Whether these bytes come next, which are skipped then. An escape alone is the Escape key: what
  // follows it at once belongs to it.
  bool skip_if_next(std::string_view bytes) {
    constexpr int kTogetherMs = 50;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i == looked_at_.size()) {
        pollfd more = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
        char byte = 0;
        if (poll(&more, 1, kTogetherMs) != 1 || ::read(STDIN_FILENO, &byte, 1) != 1) return false;
        looked_at_.push_back(byte);
      }
      if (looked_at_[i] != bytes[i]) return false;
    }
    looked_at_.erase(looked_at_.begin(), looked_at_.begin() + std::ssize(bytes));
    return true;
  }

  // All up to the mark that ends a paste. The editor gets its newlines and tabs as characters that
  // it shows and takes, and no other control characters. False where reading has ended.
  bool read_paste() {
    std::string bytes;
    while (!bytes.ends_with(kPasteEnds)) {
      char byte = 0;
      if (read_byte(byte) <= 0) return false;
      bytes += byte;
    }
    bytes.resize(bytes.size() - kPasteEnds.size());
    while (bytes.ends_with('\n') || bytes.ends_with('\r')) bytes.pop_back();
    std::string marked;
    for (const char byte : bytes) {
      if (byte == '\n' || byte == '\r') {
        marked += kNewlineMark;
      } else if (byte == '\t') {
        marked += kTabMark;
      } else if (static_cast<unsigned char>(byte) >= 0x20 && byte != 0x7f) {
        marked += byte;
      }
    }
    pasted_.assign(marked.begin(), marked.end());
    has_pasted_ = true;
    return true;
  }

  static std::string without_marks(const std::string& line) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string_view rest = std::string_view(line).substr(i);
      const bool is_newline = rest.starts_with(kNewlineMark);
      if (is_newline || rest.starts_with(kTabMark)) {
        text += is_newline ? '\n' : '\t';
        i += kNewlineMark.size() - 1;
      } else {
        text += line[i];
      }
    }
    return text;
  }

  // What follows the escape.
  static constexpr std::string_view kPasteBegins = "[200~";
  static constexpr std::string_view kPasteEnds = "\x1b[201~";
  static constexpr std::string_view kNewlineMark = "\xE2\x90\x8A";  // U+240A, a small NL
  static constexpr std::string_view kTabMark = "\xE2\x90\x89";      // U+2409, a small HT

  std::unique_ptr<EditLine, Free> editor_;
  std::unique_ptr<History, Free> history_;
  bool goes_on_ = false;
  bool interrupted_ = false;
  bool has_pasted_ = false;     // the line may hold marks
  std::deque<char> pasted_;     // of a paste, not yet with the editor
  std::deque<char> looked_at_;  // behind an escape that began no paste
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
