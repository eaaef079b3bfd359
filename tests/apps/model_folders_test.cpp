// Which file a MODEL means: exactly the one that was asked for, or an error.
#include "apps/session/model_folders.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "tests/apps/program.h"
#include "tests/support/environment.h"

namespace edgellm::test {
namespace {

namespace fs = std::filesystem;

// Three model folders: two of EDGELLM_MODELS, and the user's.
struct Folders {
  TempDir temp;
  std::string a = make("a");
  std::string b = make("b");
  std::string user = make("data/edgellm/models");
  WithVariable models{"EDGELLM_MODELS", ":" + a + ":/nowhere/models::" + b};
  WithVariable data{"XDG_DATA_HOME", temp / "data"};
  WithVariable cache{"EDGELLM_CACHE", temp / "cache"};

  std::string make(const std::string& name) const {
    fs::create_directories(temp.path() / name);
    return temp / name;
  }
  std::string add(const std::string& path) const { return write_file(temp, path, "x"); }
};

void check_error(const std::string& name, const std::vector<std::string>& parts) {
  std::string message;
  try {
    message = "found " + find_model(name);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kModelFile);
    message = error.what();
  }
  INFO(message);
  for (const std::string& part : parts) CHECK(message.find(part) != std::string::npos);
}

TEST_CASE("the model folders") {
  const Folders folders;
  using List = std::vector<std::string>;
  CHECK(model_folders() == List{folders.a, "/nowhere/models", folders.b, folders.user});
  const WithVariable home("HOME", "/home/me");
  const WithVariable relative("XDG_DATA_HOME", "data");
  const WithVariable none("EDGELLM_MODELS", "");
  CHECK(model_folders() == List{"/home/me/.local/share/edgellm/models"});
  const WithVariable homeless("HOME", "");
  CHECK(model_folders().empty());
}

TEST_CASE("a path comes first, then the path with the ending") {
  const Folders folders;
  const std::string both = folders.add("m");
  folders.add("m.tmac2");
  CHECK(find_model(both) == both);
  fs::remove(both);
  CHECK(find_model(both) == both + ".tmac2");
  // A folder is no model, what stands beside it may be.
  fs::create_directory(both);
  CHECK(find_model(both) == both + ".tmac2");
  fs::remove(both + ".tmac2");
  check_error(both, {"is a folder", "it has no config.json"});
  check_error(both + "/", {"is a folder"});
}

TEST_CASE("a name is looked for in the model folders") {
  const Folders folders;
  const std::string in_b = folders.add("b/story.tmac2");
  const std::string in_user = folders.add("data/edgellm/models/other.bin");
  fs::create_directory(folders.b + "/org");
  const std::string nested = folders.add("b/org/big.tmac2");
  CHECK(find_model("story") == in_b);
  CHECK(find_model("story.tmac2") == in_b);
  CHECK(find_model("other.bin") == in_user);
  CHECK(find_model("org/big") == nested);
  check_error("other", {"no model file other, and no such model in " + folders.a});
  check_error("../b/story", {"no model file ../b/story"});
  check_error("./story", {"no model file ./story;"});
  check_error("", {"no model file"});
  check_error("/nowhere/story", {"no model file /nowhere/story;"});
}

TEST_CASE("two models of one name are ambiguous, two names of one are not") {
  const Folders folders;
  const std::string in_a = folders.add("a/story.tmac2");
  fs::create_symlink(in_a, folders.b + "/story.tmac2");
  CHECK(find_model("story") == in_a);
  fs::remove(folders.b + "/story.tmac2");
  const std::string in_b = folders.add("b/story.tmac2");
  check_error("story", {"ambiguous", in_a + " and " + in_b, "give the path"});
  CHECK(find_model(in_b) == in_b);
}

TEST_CASE("a similar name is never taken, only shown") {
  const Folders folders;
  const std::string in_a = folders.add("a/storyteller.tmac2");
  const std::string in_b = folders.add("b/storytellers.tmac2");
  check_error("storyteler", {"no model file storyteler", "did you mean " + in_a + "?"});
  check_error("story", {"did you mean " + in_a + " or " + in_b + "?"});
  check_error("STORYTELLER", {"did you mean " + in_a + "?"});
  check_error(folders.a + "/storytelle", {"did you mean " + in_a + "?"});
  check_error("xyzzy", {"no model file xyzzy", "give the path of a .tmac2 file"});
}

TEST_CASE("a folder that holds models names them") {
  const Folders folders;
  const std::string model = folders.add("a/story.tmac2");
  check_error(folders.a, {"is a folder, expected a .tmac2 file; it holds " + model});
}

TEST_CASE("without a home folder an error says which variables name model folders") {
  const WithVariable none("EDGELLM_MODELS", "");
  const WithVariable data("XDG_DATA_HOME", "");
  const WithVariable home("HOME", "");
  check_error("nope", {"no model file nope, and no such model in any model folder, as neither "
                       "EDGELLM_MODELS, XDG_DATA_HOME nor HOME names one"});
}

TEST_CASE("list shows the models of the folders, rm deletes them by name and nothing else") {
  const Folders folders;
  const Result none = run({"list"});
  CHECK(none.exit_code == 0);
  CHECK(none.out.empty());
  CHECK(none.err.find("no models in " + folders.a) != std::string::npos);

  const std::string story = folders.add("b/story.tmac2");
  fs::create_directory(folders.b + "/org");
  const std::string big = folders.add("b/org/big.tmac2");
  const std::string notes = folders.add("b/notes.txt");
  const std::string outside = folders.add("outside.tmac2");
  const Result table = run({"list"});
  CHECK(table.out == "NAME          SIZE  PATH\norg/big    1 bytes  " + big +
                         "\nstory      1 bytes  " + story + "\n");
  CHECK(run({"ls"}).out == table.out);
  const auto json = json_of(run({"list", "--json"}));
  CHECK(json["schema"] == "edgellm.list/1");
  CHECK(json["folders"].size() == 4);
  REQUIRE(json["models"].size() == 2);
  CHECK(json["models"][1] ==
        nlohmann::json({{"name", "story"}, {"path", story}, {"bytes", 1}, {"kind", "tmac2"}}));
  CHECK(json["cached"] == nlohmann::json::array());

  check_refused(run({"rm", outside}), 2, "is a path, expected the name of a model");
  check_refused(run({"rm", "../outside"}), 2, "is a path");
  check_refused(run({"rm", "story", "nope"}), 3, "no model nope in " + folders.a);
  check_refused(run({"rm"}), 2, "no model named; usage: edgellm rm NAME");
  check_refused(run({"rm", "story", "notes.txt"}), 3, "is none of the models that edgellm list");
  CHECK(fs::exists(story));
  const std::string twin = folders.add("a/story.tmac2");
  check_refused(run({"rm", "story"}), 3, "ambiguous");
  fs::remove(twin);
  const Result removed = run({"rm", "story", "org/big"});
  CHECK(removed.exit_code == 0);
  CHECK(removed.err == "edgellm: deleted " + story + "\nedgellm: deleted " + big + "\n");
  CHECK(!fs::exists(story));
  CHECK(!fs::exists(big));
  CHECK(fs::exists(notes));
  CHECK(fs::exists(outside));
}

// The name of each model that list shows, with its kind.
std::map<std::string, std::string> listed() {
  std::map<std::string, std::string> kinds;
  const auto list = json_of(run({"list", "--json"}));
  for (const auto& model : list["models"]) {
    kinds[model["name"]] = model["kind"];
  }
  return kinds;
}

TEST_CASE("GGUF files and Hugging Face folders in a model folder have names as well") {
  const Folders folders;
  for (const auto& entry : fs::directory_iterator(copy_model(folders.temp))) {
    fs::create_directories(folders.b + "/org/hf");
    fs::copy_file(fs::canonical(entry.path()),
                  folders.b + "/org/hf/" + entry.path().filename().string());
  }
  write_file(folders.temp, "b/one.gguf", "GGUF" + std::string(60, '\0'));
  write_file(folders.temp, "b/two-00001-of-00002.gguf", "GGUF" + std::string(10, '\0'));
  write_file(folders.temp, "b/two-00002-of-00002.gguf", "GGUF" + std::string(20, '\0'));
  write_file(folders.temp, "b/not.gguf", "text");
  write_file(folders.temp, "b/org/hf/inner.gguf", "GGUF" + std::string(60, '\0'));
  CHECK(listed() == std::map<std::string, std::string>{{"one.gguf", "gguf"},
                                                       {"org/hf/", "hugging_face"},
                                                       {"two-00001-of-00002.gguf", "gguf"}});
  const auto models = json_of(run({"list", "--json"}))["models"];
  CHECK(models[0]["bytes"] == 64);
  CHECK(models[2]["bytes"] == 14 + 24);

  // The folder runs by its name, with a slash or without; a file of that name comes first.
  for (const char* name : {"org/hf", "org/hf/"}) {
    const Result info = run({"info", name, "--json"});
    INFO(info.err);
    CHECK(info.exit_code == 0);
  }
  const auto cached = json_of(run({"list", "--json"}))["cached"];
  REQUIRE(cached.size() == 1);
  CHECK(cached[0]["source"] == fs::canonical(folders.b + "/org/hf").string());
  CHECK(cached[0]["bytes"] == fs::file_size(cached[0]["path"].get<std::string>()));
  const std::string table = run({"list"}).out;
  CHECK_THAT(table, Catch::Contains("\n\nCONVERTED FROM ") && Catch::Contains("/b/org/hf  ") &&
                        !Catch::Contains("no longer there"));
  folders.add("b/org/hf.tmac2");
  CHECK(find_model("org/hf") == folders.b + "/org/hf.tmac2");

  // rm deletes all parts, and no folder.
  check_refused(run({"rm", "one.gguf", "org/hf/"}), 2, "type: rm -r " + folders.b + "/org/hf");
  CHECK(fs::exists(folders.b + "/one.gguf"));
  CHECK(run({"rm", "one.gguf", "two-00001-of-00002.gguf"}).exit_code == 0);
  CHECK(listed() ==
        std::map<std::string, std::string>{{"org/hf", "tmac2"}, {"org/hf/", "hugging_face"}});
  CHECK_FALSE(fs::exists(folders.b + "/two-00002-of-00002.gguf"));
  fs::remove_all(folders.b + "/org/hf");
  CHECK_THAT(run({"list"}).out, Catch::Contains("/b/org/hf (no longer there)  "));
}

TEST_CASE("commands take names of models") {
  const TempDir folder;
  fs::create_symlink(demo_model(), folder.path() / "teller.tmac2");
  const WithVariable models("EDGELLM_MODELS", folder.path().string());
  CHECK(run({"tokenize", "teller", "Once"}).exit_code == 0);
  const auto info = json_of(run({"info", "teller", "--json"}));
  CHECK(info == json_of(run({"info", folder / "teller.tmac2", "--json"})));
  CHECK(info == json_of(run({"show", "teller", "--json"})));
  const Result missing = run({"run", "telller", "-p", "x"});
  CHECK(missing.exit_code == 3);
  CHECK(missing.err.find("did you mean " + (folder / "teller.tmac2") + "?") != std::string::npos);
  CHECK(missing.err.find('\n') == missing.err.size() - 1);
}

}  // namespace
}  // namespace edgellm::test
