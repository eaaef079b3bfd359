// A folder or a GGUF file in place of a model: converted once, then found again.
#include "apps/session/cached_model.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/apps/program.h"
#include "tests/support/environment.h"

namespace edgellm::test {
namespace {

namespace fs = std::filesystem;

// A Hugging Face folder of our own to change, and a cache.
struct Place {
  TempDir temp;
  std::string folder = copy_files();
  std::string cache = temp / "cache";
  WithVariable variable{"EDGELLM_CACHE", cache};
  std::string ids = write_file(temp, "ids.json", "[1, 2, 3]");

  std::string copy_files() const {
    const std::string links = copy_model(temp);
    const std::string files = temp / "model";
    fs::create_directory(files);
    for (const auto& entry : fs::directory_iterator(links)) {
      fs::copy_file(fs::canonical(entry.path()), files + "/" + entry.path().filename().string());
    }
    return files;
  }
  std::vector<std::string> arguments(const std::string& model) const {
    return {"run", model, "--ids-file", ids, "-n", "4"};
  }
  Result run_model(const std::string& model) const {
    Result result = run(arguments(model));
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(!result.out.empty());
    return result;
  }
  std::vector<std::string> cached() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(cache + "/models")) {
      paths.push_back(entry.path().string());
    }
    return paths;
  }
};

bool has_note(const Result& result) { return result.err.find("converted ") != std::string::npos; }

TEST_CASE("the cache folder") {
  const WithVariable home("HOME", "/home/me");
  const WithVariable xdg("XDG_CACHE_HOME", "/caches");
  {
    const WithVariable own("EDGELLM_CACHE", "/own");
    CHECK(cache_folder() == "/own");
  }
  const WithVariable none("EDGELLM_CACHE", "");
  CHECK(cache_folder() == "/caches/edgellm");
  const WithVariable relative("XDG_CACHE_HOME", "caches");
  CHECK(cache_folder() == "/home/me/.cache/edgellm");
}

TEST_CASE("a folder is converted once") {
  const Place place;
  const Result first = place.run_model(place.folder);
  REQUIRE(place.cached().size() == 1);
  const std::string model = place.cached().front();
  CHECK(first.err == "edgellm: converted " + place.folder + ", once, into " + model + "\n");
  // What convert makes of it, apart from the name of the source.
  const std::string by_hand = place.temp / "by_hand.tmac2";
  CHECK(run({"convert", place.folder, "-o", by_hand}).exit_code == 0);
  CHECK(read_file(by_hand) == read_file(model));

  for (const std::string& same : {place.folder, place.folder + "/", place.folder + "/../model"}) {
    const Result again = place.run_model(same);
    CHECK(again.out == first.out);
    CHECK(again.err.empty());
  }
  // What no conversion reads.
  write_file(place.temp, "model/README.md", "# A model");
  CHECK(place.run_model(place.folder).err.empty());
  // Every command takes it.
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"info", place.folder},
           {"verify", place.folder},
           {"logits", place.folder, "--ids-file", place.ids, "--json"},
           {"bench", place.folder, "-p", "4", "-n", "2", "-d", "0", "-r", "1"}}) {
    const Result result = run(command);
    INFO(command.front() << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK_FALSE(has_note(result));
  }
  CHECK(place.cached().size() == 1);
}

TEST_CASE("a folder that has changed is converted anew, one that has moved is known again") {
  const Place place;
  const Result first = place.run_model(place.folder);
  fs::rename(place.folder, place.temp / "moved");
  const Result moved = place.run_model(place.temp / "moved");
  CHECK_FALSE(has_note(moved));
  CHECK(moved.out == first.out);
  fs::copy(place.temp / "moved", place.folder);
  CHECK_FALSE(has_note(place.run_model(place.folder)));
  CHECK(place.cached().size() == 1);

  // The same size and the same time of the last change.
  const std::string weights = place.folder + "/model.safetensors";
  struct stat status = {};
  REQUIRE(stat(weights.c_str(), &status) == 0);
  std::string bytes = read_file(weights);
  for (size_t i = bytes.size() - 4096; i < bytes.size(); ++i) bytes[i] = '\0';
  write_file(place.temp, "model/model.safetensors", bytes);
  const timespec times[2] = {status.st_atim, status.st_mtim};
  REQUIRE(utimensat(AT_FDCWD, weights.c_str(), times, 0) == 0);
  CHECK(has_note(place.run_model(place.folder)));
  CHECK(place.cached().size() == 2);
}

TEST_CASE("two processes that want the same conversion make one") {
  const Place place;
  std::vector<std::unique_ptr<Program>> programs;
  for (int i = 0; i < 3; ++i) {
    programs.push_back(
        std::make_unique<Program>(place.arguments(place.folder), Program::Streams{}));
  }
  int notes = 0;
  for (const auto& program : programs) {
    const Result result = program->wait();
    INFO(result.err);
    CHECK(result.exit_code == 0);
    notes += static_cast<int>(has_note(result));
  }
  CHECK(notes == 1);
  CHECK(place.cached().size() == 1);
}

TEST_CASE(
    "with --no-cache a command refuses what would have to be converted, with the command to type") {
  const Place place;
  std::vector<std::string> args = place.arguments(place.folder);
  args.emplace_back("--no-cache");
  check_refused(run(args), 3,
                place.folder +
                    " is a Hugging Face folder, expected a .tmac2 file; make one with: "
                    "edgellm convert " +
                    place.folder + " -o NAME.tmac2");
  // By the contents, whatever the name.
  const std::string gguf = write_file(place.temp, "odd.name", "GGUF" + std::string(60, '\0'));
  check_refused(run({"info", gguf, "--no-cache"}), 3, gguf + " is a GGUF file, expected");
  CHECK_FALSE(fs::exists(place.cache));
  // A model that needs no conversion is taken.
  CHECK(run({"info", demo_model(), "--no-cache"}).exit_code == 0);
}

TEST_CASE("what cannot be converted leaves nothing in the cache") {
  const Place place;
  write_file(place.temp, "model/config.json", R"({"architectures": ["Gpt9"]})");
  check_refused(run(place.arguments(place.folder)), 4, "Gpt9");
  CHECK(place.cached().empty());
  const std::string fifo = place.temp / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  check_refused(run(place.arguments(fifo)), 3, "is not a regular file");
}

TEST_CASE("a cache that cannot be written is named with the variable that moves it") {
  const Place place;
  const WithVariable variable("EDGELLM_CACHE", write_file(place.temp, "file", "x") + "/cache");
  check_refused(run(place.arguments(place.folder)), 1, "set EDGELLM_CACHE to a folder");
}

TEST_CASE("rm --cache deletes what is edgellm's") {
  const Place place;
  place.run_model(place.folder);
  write_file(place.temp, "cache/notes.txt", "mine");
  const Result removed = run({"rm", "--cache"});
  CHECK(removed.exit_code == 0);
  CHECK(removed.err.ends_with(" in " + place.cache + "\n"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(place.cache)) {
    left.push_back(entry.path().filename().string());
  }
  CHECK(left == std::vector<std::string>{"notes.txt"});
  CHECK(has_note(place.run_model(place.folder)));
}

}  // namespace
}  // namespace edgellm::test
