// What a user types to chat: messages and commands, line by line, from a terminal or a pipe.
//
// At a terminal lines are edited and remembered (libedit). Prompt and echo go to stderr, so that
// stdout carries answers and nothing else.
#pragma once

#include <memory>
#include <string>

namespace edgellm {

class ChatInput {
 public:
  enum class Event {
    kMessage,      // one line, what was pasted at once, or the lines between """ and """
    kInterrupted,  // Ctrl-C at the prompt: what was typed is forgotten
    kEnd,          // Ctrl-D, or the end of the pipe
  };

  ChatInput();
  ~ChatInput();
  ChatInput(const ChatInput&) = delete;
  ChatInput& operator=(const ChatInput&) = delete;

  // A person sits there, who can correct what went wrong.
  bool is_terminal() const;

  // The next message, empty lines left out. Ends the program (Interrupted) after a signal other
  // than Ctrl-C at a terminal.
  Event read(std::string& message);

 private:
  class Lines;
  class PlainLines;
  class EditedLines;

  std::unique_ptr<Lines> lines_;
};

}  // namespace edgellm
