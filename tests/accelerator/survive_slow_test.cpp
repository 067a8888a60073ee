// Survive under many kills at random times, in every kind of training. HASTEN_TEST_SCALE multiplies their number.
#include <memory>

#include "accelerator/survived_program.h"
#include "cli/machines.h"

namespace hasten::survived {
namespace {

HASTEN_PROCESS_CASE(survived_program) {
  return run_program();
}

TEST(SurviveSlow, RandomKillsEndAsTheUndisturbedRun) {
  const auto scale = Environment::current().integer("HASTEN_TEST_SCALE", 1, 1000).value_or(1);
  for (const std::string program : {"", "gloo", "accumulates workers", "gan", "gan gloo", "fp16", "swallows", "saves",
                                    "saves gloo", "background"}) {
    const std::string expected = undisturbed(program);
    for (int64_t seed = 1; seed <= scale; ++seed) {
      const Ended ended = run_survived(program, "", text("20:", seed));

      expect_same_end(ended, expected, text(program, ", seed ", seed));
    }
  }
}

/// Two hosts, which are network namespaces, with two ranks each. Rank 0's serves the store.
class SurviveHosts : public test::Machines {
 protected:
  /// The states of all ranks at the end of a run.
  std::vector<std::string> run(const std::string& program, const std::string& deaths) {
    std::string folder = ::testing::TempDir() + "/survive_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    const auto first = start(0, folder, program, deaths), second = start(1, folder, program, deaths);
    const auto one = first->finish(), other = second->finish();
    EXPECT_EQ(one.exit_code, 0) << one.out << one.err;
    EXPECT_EQ(other.exit_code, 0) << other.out << other.err;
    std::vector<std::string> states;
    for (int rank = 0; rank < 4; ++rank) states.push_back(contents(folder + text("/end_", rank)));
    std::filesystem::remove_all(folder);
    return states;
  }

 private:
  std::unique_ptr<test::Command> start(int host, const std::string& folder, const std::string& program,
                                       const std::string& deaths) const {
    auto variables = environment();
    variables["HASTEN_TEST_CASE"] = "survived_program";
    variables["SURVIVE_PROGRAM"] = program;
    variables["SURVIVE_DIES"] = deaths;
    variables["TMPDIR"] = folder;
    return std::make_unique<test::Command>(
        on_machine(host, words({"--nnodes", "2", "--node_rank", text(host), "--nproc_per_node", "2", "--master_addr",
                                address(0), "--master_port", "29518", "--survive", "20", "--cpu", "--no_python",
                                std::filesystem::read_symlink("/proc/self/exe").string()})),
        variables);
  }
};

TEST_F(SurviveHosts, RanksOfEitherHostAreReplaced) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;
  const auto expected = run("saves", "");
  ASSERT_FALSE(expected[0].empty());

  const auto ended = run("saves", "3@forward:5,1@backward:9,0@optimizer:14,2@evaluation:3,3@writing:2,0@save:3");

  for (const std::string& state : ended) EXPECT_EQ(state, expected[0]);
}

}  // namespace
}  // namespace hasten::survived
