// What a batch leaves behind when it is ended, and how the same command goes on from there.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "tests/apps/batch_files.h"
#include "tests/support/sanitizers.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The whole lines.
std::string whole_lines(const std::string& text) { return text.substr(0, text.rfind('\n') + 1); }

std::string file_or_nothing(const std::string& path) {
  return std::filesystem::exists(path) ? read_file(path) : "";
}

// Waits until the output holds so many bytes.
void wait_for_output(const std::string& path, size_t n_bytes) {
  for (int i = 0; i < 20'000 && file_or_nothing(path).size() < n_bytes; ++i) usleep(1000);
  REQUIRE(file_or_nothing(path).size() >= n_bytes);
}

std::map<std::string, std::string> answers(const std::string& path) {
  return answers_of(read_records(path));
}

TEST_CASE("a batch that is killed twenty times ends complete and without duplicates") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(kSanitized ? 60 : 400, 16));
  const std::string whole = folder / "whole.jsonl";
  run_batch_to(0, in, whole);
  const std::string out = folder / "out.jsonl";
  std::mt19937 random(20);
  int n_in_work = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const Records before = records_of(whole_lines(file_or_nothing(out)));
    Program program(batch_args(in, out, {"--threads", "1"}), {});
    usleep(static_cast<useconds_t>(20'000 + random() % 200'000));
    program.send_signal(SIGKILL);
    if (program.wait().exit_code == 128 + SIGKILL) ++n_in_work;
    const Records after = records_of(whole_lines(file_or_nothing(out)));
    for (const auto& [id, record] : before) CHECK(after.at(id) == record);
  }
  INFO(n_in_work << " of 20 were killed before the end");
  if (!kSanitized) CHECK(n_in_work >= 5);
  run_batch_to(0, in, out);
  CHECK(answers(out) == answers(whole));
  CHECK(names_in(folder) == std::vector<std::string>{"in.jsonl", "out.jsonl",
                                                     "out.jsonl.manifest.json", "whole.jsonl",
                                                     "whole.jsonl.manifest.json"});
}

TEST_CASE("Ctrl-C keeps what is done, and the same command goes on") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(300, 20));
  const std::string out = folder / "out.jsonl";
  const std::string summary = folder / "summary.json";
  Program program(batch_args(in, out, {"--threads", "1", "--summary", summary}), {});
  wait_for_output(out, 1);
  program.send_signal(SIGINT);
  const Result result = program.wait();
  CHECK(result.exit_code == 130);
  CHECK(contains(result.err, "type the same command again to resume"));
  const size_t n_before = read_records(out).size();
  REQUIRE(n_before > 0);
  REQUIRE(n_before < 300);
  const auto json = nlohmann::json::parse(read_file(summary));
  CHECK(json["interrupted"] == true);
  CHECK(json["complete"] == false);
  CHECK(json["requests"]["answered"] == n_before);

  const Result rest = run_batch_to(0, in, out);
  CHECK(contains(rest.err, std::to_string(n_before) + " answered before"));
  CHECK(read_records(out).size() == 300);
  const std::string bytes = read_file(out);
  const Result nothing = run_batch_to(0, in, out);
  CHECK(contains(nothing.err, "0 answered, 300 answered before"));
  CHECK(read_file(out) == bytes);
}

TEST_CASE("what failed is tried again, and its record replaced") {
  const TempDir folder;
  std::string words;
  for (int i = 0; i < 100; ++i) words += "and so ";
  const std::string in =
      write_file(folder, "in.jsonl",
                 story_requests(3, 4) + nlohmann::json({{"id", "long"}, {"prompt", words}}).dump() +
                     "\n" + story_requests(1, 4));  // the id r0 again
  const std::string out = folder / "out.jsonl";
  const Result first = run_batch_to(7, in, out, {"-n", "4", "-c", "128"});
  CHECK(contains(first.err, "3 answered, 2 failed"));
  CHECK(read_records(out).at("long")["error"]["code"] == "prompt_does_not_fit");
  const auto r1 = read_records(out).at("r1");
  const Result again = run_batch_to(7, in, out, {"-n", "4", "-c", "128"});
  CHECK(contains(again.err, "0 answered, 2 failed, 3 answered before"));
  const Result larger = run_batch_to(7, in, out, {"-n", "4", "-c", "512", "--keep-answers"});
  CHECK(contains(larger.err, "1 answered, 1 failed, 3 answered before"));
  const Records records = read_records(out);
  CHECK(records.size() == 5);
  CHECK(!answer_of(records.at("long")).empty());
  CHECK(records.at("r1") == r1);
}

TEST_CASE("torn and damaged lines are dropped and answered again") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(6, 4));
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out);
  const auto expected = answers(out);
  const std::string bytes = read_file(out);
  const size_t second = bytes.find('\n') + 1;
  const size_t third = bytes.find('\n', second) + 1;
  const std::string torn = bytes.substr(0, bytes.size() - 1);  // all but the newline
  for (const std::string& damaged :
       {torn, bytes.substr(0, third + 20), bytes.substr(0, second) + bytes.substr(second + 40),
        std::string(300, '\0') + bytes.substr(second), bytes + "{\"id\":1}\n"}) {
    write_file(folder, "out.jsonl", damaged);
    // As a run leaves it that did not come to its end.
    std::string manifest = read_file(out + ".manifest.json");
    const size_t complete = manifest.find("\"complete\": true");
    if (complete != std::string::npos) manifest.replace(complete, 16, "\"complete\": false");
    write_file(folder, "out.jsonl.manifest.json", manifest);
    const Result result = run_batch_to(0, in, out);
    CHECK(contains(result.err, "dropped 1 line that was not whole"));
    CHECK(answers(out) == expected);
  }
}

TEST_CASE("another model, other options, another input or shard are refused until told") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(4, 4));
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out, {"-n", "3"});
  const std::string bytes = read_file(out);
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    const Result result = run_batch_to(2, in, out, more);
    CHECK(contains(result.err, part));
    CHECK(contains(result.err, "--restart"));
    CHECK(contains(result.err, "--keep-answers"));
    CHECK(read_file(out) == bytes);
  };
  refused({"-n", "5"}, "--max-tokens was 3, now it is 5");
  refused({"-n", "3", "--temp", "1"}, "of another run: temperature was 0.0, now it is 1.0. Use");
  refused({"-n", "3", "--kv-type", "f32"}, "--kv-type was \"i16\", now it is \"f32\"");
  refused({"-n", "3", "--shard", "1/2"}, "--shard was 1/1, now it is 1/2");
  // The manifest of a version whose default was half precision.
  const std::string manifest = read_file(out + ".manifest.json");
  std::string earlier = manifest;
  earlier.replace(earlier.find("\"i16\""), 5, "\"f16\"");
  write_file(folder, "out.jsonl.manifest.json", earlier);
  refused({"-n", "3"}, "--kv-type was \"f16\", now it is \"i16\"");
  write_file(folder, "out.jsonl.manifest.json", manifest);
  const Result model = run({"batch", tiny_model(folder), "-i", in, "-o", out, "-n", "3"});
  CHECK(model.exit_code == 2);
  CHECK(contains(model.err, "the model was " + demo_model()));
  write_file(folder, "in.jsonl", "{\"id\":\"new\",\"prompt\":\"x\"}\n" + story_requests(3, 4));
  refused({"-n", "3"}, "does not begin with the same");
  std::string larger = story_requests(5, 4);  // as long as before, and a line more
  larger[larger.find("king")] = 'K';
  write_file(folder, "in.jsonl", larger);
  refused({"-n", "3"}, "does not begin with the same");

  // What changes no answer may change.
  write_file(folder, "in.jsonl", story_requests(4, 4));
  run_batch_to(0, in, out, {"-n", "3", "--sequences", "2", "--threads", "1", "--ordered"});

  // Told to keep: what this input still asks for stays, in its new line.
  write_file(folder, "in.jsonl", "{\"id\":\"new\",\"prompt\":\"x\"}\n" + story_requests(3, 4));
  const Result kept = run_batch_to(0, in, out, {"-n", "3", "--keep-answers"});
  CHECK(contains(kept.err, "1 answered, 3 answered before"));
  const Records records = read_records(out);
  CHECK(records.size() == 4);
  CHECK(records.at("new")["line"] == 1);
  CHECK(records.at("r2")["line"] == 4);
  CHECK(!records.contains("r3"));

  const Result restarted = run_batch_to(0, in, out, {"-n", "5", "--restart"});
  CHECK(contains(restarted.err, "4 answered: "));
  CHECK(read_records(out).size() == 4);
}

TEST_CASE("an input that has grown is the same input") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(3, 4));
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out);
  write_file(folder, "in.jsonl", story_requests(5, 4));
  CHECK(contains(run_batch_to(0, in, out).err, "2 answered, 3 answered before"));
  CHECK(read_records(out).size() == 5);

  // Without a newline at its end: behind the last line, but not in it.
  const std::string two = "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"prompt\":\"y\"}";
  write_file(folder, "text", two);
  const std::string answers_of_text = folder / "text.jsonl";
  const std::vector<std::string> text = {"--text", "-n", "2"};
  run_batch_to(0, folder / "text", answers_of_text, text);
  write_file(folder, "text", two + " and more");
  CHECK(contains(run_batch_to(2, folder / "text", answers_of_text, text).err, "the same"));
  write_file(folder, "text", two + "\nmore");
  CHECK(contains(run_batch_to(0, folder / "text", answers_of_text, text).err, "1 answered, 2 "));
}

TEST_CASE("standard input is gone on with, too") {
  const TempDir folder;
  const std::string out = folder / "out.jsonl";
  const std::string requests = story_requests(200, 16);
  Program program(batch_args("-", out, {"--threads", "1"}), {.in_path = ""});
  program.write_input(requests);
  wait_for_output(out, 1);
  program.send_signal(SIGTERM);
  CHECK(program.wait().exit_code == 143);
  const size_t n_before = read_records(out).size();
  REQUIRE(n_before < 200);
  const Result other = run_with_input(batch_args("-", out), "{\"id\":\"x\",\"prompt\":\"x\"}\n");
  CHECK(other.exit_code == 2);
  CHECK(contains(other.err, "requests that this input lacks"));
  const Result rest = run_with_input(batch_args("-", out), requests);
  INFO(rest.err);
  CHECK(rest.exit_code == 0);
  CHECK(contains(rest.err, std::to_string(n_before) + " answered before"));
  CHECK(read_records(out).size() == 200);
}

// A short request, then three long ones: the first record says that the others are under way.
std::string short_and_long_requests() {
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    lines += "{\"id\":\"" + std::to_string(i) +
             "\",\"prompt\":\"Once upon a time\",\"max_tokens\":" + (i == 0 ? "1" : "1500") +
             ",\"ignore_eos\":true}\n";
  }
  return lines;
}

TEST_CASE("after SIGTERM what is being answered is finished, in the time there is") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", short_and_long_requests());
  const auto stopped_with = [&](const std::string& out, const std::string& grace) {
    Program program(batch_args(in, out, {"--threads", "1", "--grace", grace}), {});
    wait_for_output(out, 1);
    program.send_signal(SIGTERM);
    const Result result = program.wait();
    INFO(result.err);
    CHECK(result.exit_code == 143);
    CHECK(contains(result.err, "type the same command again"));
    CHECK(contains(result.err, "finishing 3 answers") == (grace != "0"));
    return read_records(out).size();
  };
  CHECK(stopped_with(folder / "patient.jsonl", "600") == 4);
  const std::string out = folder / "out.jsonl";
  CHECK(stopped_with(out, "0") == 1);
  run_batch_to(0, in, out);
  CHECK(answers_of(read_records(out)) == answers_of(read_records(folder / "patient.jsonl")));
}

TEST_CASE("a file that is no output is left alone") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(1, 1));
  const std::string out = write_file(folder, "thesis.txt", "years of work\n");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--restart"}}) {
    CHECK(contains(run_batch_to(2, in, out, more).err, "no output of edgellm batch"));
    CHECK(read_file(out) == "years of work\n");
  }
  // And one that a run began and whose manifest is broken.
  write_file(folder, "thesis.txt.manifest.json", "{");
  CHECK(contains(run_batch_to(2, in, out).err, "not valid JSON"));
  run_batch_to(0, in, out, {"--restart"});
  CHECK(read_records(out).size() == 1);
}

TEST_CASE("an output belongs to one process at a time") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(400, 20));
  const std::string out = folder / "out.jsonl";
  Program first(batch_args(in, out, {"--threads", "1"}), {});
  wait_for_output(out, 1);
  const Result second = run_batch_to(1, in, out);
  CHECK(contains(second.err, "is being written by another edgellm batch"));
  const Result restart = run_batch_to(1, in, out, {"--restart"});
  CHECK(contains(restart.err, "is being written by another edgellm batch"));
  first.send_signal(SIGINT);
  CHECK(first.wait().exit_code == 130);
}

TEST_CASE("an output that cannot be written is found before the model is loaded") {
  const TempDir folder;
  chmod(folder.path().c_str(), 0755);
  const std::string in = write_file(folder, "in.jsonl", story_requests(1, 1));
  const auto refused = [&](const std::string& out, const std::string& part) {
    Program program(batch_args(in, out), {.is_unprivileged = true});
    const Result result = program.wait();
    INFO(result.err);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.err, "cannot write " + out + ": " + part));
    CHECK(!contains(result.err, "KV cache"));
  };
  refused(folder / "out.jsonl", "Permission denied");
  std::filesystem::create_directory(folder.path() / "open");
  chmod((folder / "open").c_str(), 0777);
  const std::string closed = write_file(folder, "open/out.jsonl", "");
  chmod(closed.c_str(), 0444);
  refused(closed, "Permission denied");
}

TEST_CASE("a full disk costs the answers in flight, no more") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(60, 8));
  const std::string out = folder / "out.jsonl";
  rlimit old = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const rlimit limited = {.rlim_cur = 20'000, .rlim_max = old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  Program program(batch_args(in, out), {});
  setrlimit(RLIMIT_FSIZE, &old);
  const Result result = program.wait();
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(contains(result.err, "cannot write " + out +
                                 ": File too large; what was written before is "
                                 "safe: type the same command again to resume"));
  const std::string bytes = read_file(out);
  CHECK(whole_lines(bytes) == bytes);
  run_batch_to(0, in, out);
  CHECK(read_records(out).size() == 60);
}

// A disk of 96 kB in a mount namespace of its own: without the right to make one, skipped.
TEST_CASE("a disk that is full is gone on with when it has room again") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(60, 8));
  write_file(folder, "try.sh",
             "set -u\n"
             "program=$1 model=$2 folder=$3\n"
             "mkdir -p $folder/disk && mount -t tmpfs -o size=96k none $folder/disk || exit 77\n"
             "head -c 65536 /dev/zero > $folder/disk/filler\n"
             "export CUDA_VISIBLE_DEVICES=\n"
             "$program batch $model -i $folder/in.jsonl -o $folder/disk/out.jsonl 2> $folder/err\n"
             "test $? = 1 || exit 1\n"
             "rm $folder/disk/filler\n"
             "$program batch $model -i $folder/in.jsonl -o $folder/disk/out.jsonl || exit 2\n"
             "cp $folder/disk/out.jsonl $folder/out.jsonl\n");
  const std::string command = "unshare --mount sh " + (folder / "try.sh") + " " + EDGELLM_PROGRAM +
                              " " + demo_model() + " " + folder.path().string() + " 2>/dev/null";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (!std::filesystem::exists(folder / "err")) return skip("no right to mount a file system");
  INFO(file_or_nothing(folder / "err"));
  CHECK(code == 0);
  CHECK(contains(file_or_nothing(folder / "err"), "No space left on device"));
  CHECK(read_records(folder / "out.jsonl").size() == 60);
}

}  // namespace
}  // namespace edgellm::test
