// The command line as a whole: the program's own options, its commands, and what one line of
// arguments means.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "apps/cli/option_tree.h"
#include "apps/cli/options.h"

namespace edgellm {

class Program {
 public:
  // `examples` are indented command lines, perhaps a sentence below them.
  Program(const std::string& description, const std::string& examples);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Options of the program itself.
  Command& root() { return root_; }

  // The reference holds as long as the program. Help lists commands in the order of their adding.
  Command& add(const std::string& name, const std::string& description,
               const std::string& examples);
  std::deque<Command>& commands() { return commands_; }

  // Another name for the command, which no help shows.
  void add_alias(const std::string& alias, const std::string& name) { aliases_[alias] = name; }

  bool has_command(const std::string& name) const { return find(name) != nullptr; }

  // What a line of arguments asks for.
  struct Request {
    bool help = false;                 // of the command, or of the program where there is none
    const Command* command = nullptr;  // null: only options of the program were given
  };

  // `arguments` are those of main() without the program's name. Throws Error (kUsage): what was
  // wrong, what may have been meant, where to look.
  Request parse(const std::vector<std::string>& arguments);

  CommandInfo info() const;
  CommandInfo info(const Command& command) const;
  CommandInfo info(const std::string& name) const;

 private:
  const Command* find(const std::string& name) const;

  Command root_;
  std::deque<Command> commands_;
  std::map<std::string, std::string> aliases_;
};

}  // namespace edgellm
