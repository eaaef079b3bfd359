// Where a command writes a model to. The file is not written from front to back, so for standard
// output ("-") it is made under a temporary name first.
#pragma once

#include <string>

namespace edgellm {

class ModelOutput {
 public:
  // `named` is what the user gave. Throws Error: kUsage where standard output is a terminal,
  // kRuntime where the file cannot be written.
  explicit ModelOutput(const std::string& named);
  ~ModelOutput();  // leaves nothing of a temporary file
  ModelOutput(const ModelOutput&) = delete;
  ModelOutput& operator=(const ModelOutput&) = delete;

  const std::string& path() const { return path_; }  // where the model is to be written
  const std::string& name() const { return name_; }  // for messages
  bool is_stdout() const { return !folder_.empty(); }

  // Copies the finished file to standard output, where that is meant.
  void finish() const;

 private:
  std::string path_;
  std::string name_;
  std::string folder_;  // temporary; empty: none
};

}  // namespace edgellm
