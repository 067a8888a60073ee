// What hasten plan measures here is a machine that it takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "hasten/core/file.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "support/folder.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;

std::string hasten_command() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/hasten";
}

class Measured : public testing::InFolder {};

TEST_F(Measured, MachinesAreAFileThatThePlanTakes) {
  for (const char* processes : {"1", "2"}) {
    const std::string file = path(text("here", processes, ".json"));

    const auto run = test::run_command({hasten_command(), "plan", "--measure", "-n", processes, "-o", file});

    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_THAT(run.out, HasSubstr("written to '" + file + "'"));
    const auto machine = core::Value::parse_json(core::read_file(file).value_or(""), file);
    for (const char* rate : {"peak_flops", "memory_bandwidth", "link_bandwidth", "memory_gib"})
      EXPECT_GT(machine.at(rate).as_double(), 0) << rate;
    EXPECT_EQ(machine.at("devices_per_host").as_double(), std::stod(processes));
    const auto& constants = machine.at("constants");
    const std::string source = text("measured on ", processes, processes[0] == '1' ? " process" : " processes");
    EXPECT_EQ(constants.at("attention_share").at("source").as_string(), source);
    EXPECT_EQ(constants.at("link_share").at("source").as_string(), processes[0] == '1' ? "rated" : source);
    EXPECT_EQ(constants.at("score_passes").at("source").as_string(), "rated");
    EXPECT_GE(constants.at("product_share").at("residual").as_double(), 0);
    const auto planned = test::run_command({hasten_command(), "plan", "gpt2", "--cluster", file, "--devices", "2"});
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    EXPECT_THAT(planned.out, HasSubstr("measured CPU"));
    EXPECT_THAT(planned.out, HasSubstr("; predicted from measured constants\n"));
  }
}

TEST_F(Measured, AFileThatCannotBeWrittenIsSaidBeforehand) {
  const auto run = test::run_command({hasten_command(), "plan", "--measure", "-o", path("nowhere/here.json")});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("nowhere/here.json' cannot be written. Give -o a file in a folder that is there."));
  EXPECT_EQ(run.out, "");
}

}  // namespace
}  // namespace hasten
