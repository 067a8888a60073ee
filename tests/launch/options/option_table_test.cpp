#include "hasten/launch/options/option_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "hasten/launch/options/command_line.h"

namespace hasten::launcher {
namespace {

std::vector<Option> all_options() {
  std::vector<Option> all;
  for (const OptionGroup& group : launch_options()) {
    for (const Option& option : group.options) all.push_back(option);
  }
  return all;
}

TEST(OptionTable, EachNameAndLetterStandsThereOnce) {
  std::set<std::string_view> names;
  std::set<char> letters;

  for (const Option& option : all_options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    if (option.letter != 0) {
      EXPECT_TRUE(letters.insert(option.letter).second) << option.letter;
    }
  }
}

TEST(OptionTable, EachDefaultFitsItsOption) {
  for (const Option& option : all_options()) {
    EXPECT_EQ(option.kind == OptionKind::kChoice, !option.choices.empty()) << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    if (!option.fallback.empty()) {
      EXPECT_EQ(problem_with(option, std::string(option.fallback)), "") << option.name;
    }
  }
}

// tests/launch/peer_flags.txt: "accelerate --num_processes" and so on, as the peers' --help shows them.
TEST(OptionTable, HoldsEveryFlagOfThePeersUnderItsName) {
  const std::map<std::string, unsigned> peers = {
      {"accelerate", kAccelerate}, {"torchrun", kTorchrun}, {"torch.distributed.launch", kTorchLaunch | kTorchrun}};
  std::ifstream file(HASTEN_SOURCE_DIR "/tests/launch/peer_flags.txt");
  int num_flags = 0;

  for (std::string peer, flag; file >> peer >> flag; ++num_flags) {
    if (flag == "-h" || flag == "--help") continue;
    const Option* found = nullptr;
    if (flag.starts_with("--")) found = find_option(launch_options(), flag.substr(2));
    for (const Option& option : all_options()) {
      if (flag.size() == 2 && option.letter == flag[1]) found = find_option(launch_options(), option.name);
    }
    ASSERT_NE(found, nullptr) << peer << " " << flag;
    EXPECT_NE(found->peers & peers.at(peer), 0u) << peer << " " << flag;
  }

  EXPECT_EQ(num_flags, 362);
}

TEST(OptionTable, FindsNamesWithDashesToo) {
  EXPECT_EQ(find_option(launch_options(), "num-processes"), find_option(launch_options(), "num_processes"));
  EXPECT_EQ(find_option(launch_options(), "num_proc"), nullptr);
  // Accelerate 0.20 to 0.26.
  EXPECT_EQ(find_option(launch_options(), "fsdp_backward_prefetch_policy"),
            find_option(launch_options(), "fsdp_backward_prefetch"));
}

}  // namespace
}  // namespace hasten::launcher
