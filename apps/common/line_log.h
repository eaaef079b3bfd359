// A file of lines that several threads append to, made of spdlog: what a server was asked, for
// example.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace edgellm {

class LineLog {
 public:
  // Appends to the file; "-" is stderr. Throws Error (kUsage) where it cannot be written.
  explicit LineLog(const std::string& path);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Adds the newline. What cannot be written is lost; stderr says so.
  void write(std::string_view line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace edgellm
