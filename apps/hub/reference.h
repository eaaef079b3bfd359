// How a model of the Hugging Face Hub is named: hf:ORG/NAME, perhaps with @REVISION.
#pragma once

#include <string>

namespace edgellm::hub {

struct Reference {
  std::string org;
  std::string name;
  std::string revision;  // a branch, a tag or a commit; empty: main

  std::string id() const { return org + "/" + name; }
  std::string text() const;         // as it was given
  std::string stored_name() const;  // in a model folder: ORG/NAME or ORG/NAME@REVISION
};

// Throws Error (kUsage) with what is wrong. Nothing that leads out of a folder passes.
Reference parse_reference(const std::string& text);

// A name that a file may have in a folder of ours: one part of a path, printable, and nothing that
// a shell or a file system gives a meaning to.
bool is_plain_file_name(const std::string& name);

}  // namespace edgellm::hub
