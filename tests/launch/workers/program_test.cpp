#include "hasten/launch/workers/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// A folder with the executable `tool`, the plain file `data` and the script `train.py`; the current one
// meanwhile.
class ProgramLookup : public ::testing::Test {
 protected:
  ProgramLookup()
      : before_(fs::current_path()),
        folder_(fs::path(::testing::TempDir()) / ("hasten_program_test_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    for (const char* name : {"tool", "data", "train.py", "my data"}) std::ofstream(folder_ / name) << "#!/bin/sh\n";
    fs::permissions(folder_ / "tool", fs::perms::owner_all);
    fs::permissions(folder_ / "data", fs::perms::owner_read | fs::perms::owner_write);
    fs::current_path(folder_);
  }
  ~ProgramLookup() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }

  std::string folder() const { return folder_.string(); }

  static std::string error_of(const std::vector<std::string>& words, const Environment& environment) {
    try {
      find_program(words, environment);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  }

 private:
  fs::path before_;
  fs::path folder_;
};

TEST_F(ProgramLookup, IsFoundInPathByNameAndOtherwiseByPath) {
  const auto path = Environment::of({{"PATH", "/nonexistent:" + folder()}});

  EXPECT_EQ(find_program({"tool"}, path).file, folder() + "/tool");
  EXPECT_EQ(find_program({"./tool"}, path).file, "./tool");
}

TEST_F(ProgramLookup, KeepsItsNameAndArguments) {
  const auto program = find_program({"tool", "-n", "", "--help"}, Environment::of({{"PATH", folder()}}));

  EXPECT_THAT(program.arguments, ElementsAre("tool", "-n", "", "--help"));
}

TEST_F(ProgramLookup, APythonScriptIsRunByThePython3OfPath) {
  fs::copy_file("tool", "python3");

  const auto program = find_program({"train.py", "--lr", "1"}, Environment::of({{"PATH", folder()}}));

  EXPECT_EQ(program.file, folder() + "/python3");
  EXPECT_THAT(program.arguments, ElementsAre(folder() + "/python3", "-u", "train.py", "--lr", "1"));
}

TEST_F(ProgramLookup, ErrorsNameTheProgramAndTheRemedy) {
  const auto nowhere = Environment::of({{"PATH", "/nonexistent"}});

  EXPECT_EQ(error_of({"toool"}, nowhere),
            "[launch] program 'toool' is not in PATH. Check the name, or give the program's path.");
  EXPECT_EQ(error_of({"tool"}, nowhere),
            "[launch] program 'tool' is not in PATH. The current folder has one: start it as ./tool.");
  EXPECT_EQ(error_of({"./none"}, nowhere), "[launch] './none' does not exist. Check the name and the current folder.");
  EXPECT_EQ(error_of({"/tmp"}, nowhere), "[launch] '/tmp' is a folder; expected a program.");
  EXPECT_EQ(error_of({"./data"}, nowhere),
            "[launch] './data' is not executable. Make it so (chmod +x ./data), or name its interpreter first "
            "(bash ./data).");
  fs::permissions("my data", fs::perms::owner_read);
  EXPECT_EQ(error_of({"./my data"}, nowhere),
            "[launch] './my data' is not executable. Make it so (chmod +x './my data'), or name its interpreter first "
            "(bash './my data').");
  EXPECT_EQ(error_of({"none.py"}, nowhere),
            "[launch] 'none.py' does not exist. Check the name and the current folder.");
  EXPECT_EQ(error_of({"train.py"}, nowhere),
            "[launch] 'train.py' needs python3, which is not in PATH. Install Python or add its folder to PATH.");
}

TEST_F(ProgramLookup, TheKindDecidesHowANameIsRunAndPythonExecByWhat) {
  fs::copy_file("tool", "mine");
  const auto environment = Environment::of({{"PATH", "/usr/bin:/bin"}, {"PYTHON_EXEC", folder() + "/mine"}});

  const Program module = find_program({"a.b", "1"}, environment, ProgramKind::kModule);
  const Program script = find_program({"./tool", "1"}, environment, ProgramKind::kScript);
  const Program direct = find_program({"./tool", "1"}, environment, ProgramKind::kDirect);

  EXPECT_EQ(module.file, folder() + "/mine");
  EXPECT_THAT(module.arguments, ElementsAre(folder() + "/mine", "-u", "-m", "a.b", "1"));
  EXPECT_THAT(with_arguments(script, {"x"}).arguments, ElementsAre(folder() + "/mine", "-u", "./tool", "x", "1"));
  EXPECT_THAT(with_arguments(direct, {"x"}).arguments, ElementsAre("./tool", "x", "1"));
}

}  // namespace
}  // namespace hasten::launcher
