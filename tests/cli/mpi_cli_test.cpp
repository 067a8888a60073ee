// HASTEN_BACKEND=mpi with a real mpirun, where hasten is built with MPI; its refusal where it is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launch_folder.h"

namespace hasten {
namespace {

using test::CommandResult;
using ::testing::HasSubstr;

class Mpi : public test::LaunchFolder {
 protected:
  std::map<std::string, std::string> with_mpi() const {
    auto variables = environment();
    variables.insert({{"HASTEN_BACKEND", "mpi"},
                      {"ACCELERATE_USE_CPU", "1"},
                      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                      {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
                      {"OMPI_MCA_plm_rsh_agent", "/bin/false"}});
    return variables;
  }
  const std::string kProgram = std::string(HASTEN_BINARY_DIR) + "/bin/hasten-self-test";
};

#ifdef HASTEN_MPIRUN

TEST_F(Mpi, CollectivesShardingAndTrainingHoldUnderMpirun) {
  const CommandResult result = test::run_command({HASTEN_MPIRUN, "-n", "3", kProgram}, with_mpi());

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 of 4 hold\n")) << result.err;
}

TEST_F(Mpi, OutsideOfAnMpiJobItIsRefusedWithTheCommandToStart) {
  const CommandResult result = test::run_command({HASTEN_COMMAND, "launch", "-n", "2", kProgram}, with_mpi());

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("Start the program with mpirun -n 2."));
}

#else

TEST_F(Mpi, ABuildWithoutItRefusesWithTheRemedy) {
  const CommandResult result = test::run_command({HASTEN_COMMAND, "launch", "-n", "2", kProgram}, with_mpi());

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("built without MPI. Build it with -DHASTEN_WITH_MPI=ON"));
}

#endif

}  // namespace
}  // namespace hasten
