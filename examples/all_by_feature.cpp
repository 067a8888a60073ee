// All programs of by_feature/ in one, for the tests: `all_by_feature NAME [ARGUMENT…]`. Compiled together
// they take as long as two of them do alone; `cmake --build … --target examples_by_feature` makes each by
// itself.
#include <hasten/data/dataset/subset.h>
#include <hasten/hasten.h>
#include <hasten/models/gpt2.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.h"

namespace base {
#include "by_feature/base.cpp"
}
namespace automatic_batch_size {
#include "by_feature/automatic_batch_size.cpp"
}
namespace automatic_gradient_accumulation {
#include "by_feature/automatic_gradient_accumulation.cpp"
}
namespace checkpointing {
#include "by_feature/checkpointing.cpp"
}
namespace comm_hooks {
#include "by_feature/comm_hooks.cpp"
}
namespace context_parallel {
#include "by_feature/context_parallel.cpp"
}
namespace cross_validation {
#include "by_feature/cross_validation.cpp"
}
namespace early_stopping {
#include "by_feature/early_stopping.cpp"
}
namespace gan {
#include "by_feature/gan.cpp"
}
namespace gradient_accumulation {
#include "by_feature/gradient_accumulation.cpp"
}
namespace gradient_accumulation_for_autoregressive_models {
#include "by_feature/gradient_accumulation_for_autoregressive_models.cpp"
}
namespace local_sgd {
#include "by_feature/local_sgd.cpp"
}
namespace metrics {
#include "by_feature/metrics.cpp"
}
namespace mixed_precision {
#include "by_feature/mixed_precision.cpp"
}
namespace pipeline_parallel {
#include "by_feature/pipeline_parallel.cpp"
}
namespace preemption {
#include "by_feature/preemption.cpp"
}
namespace profiler {
#include "by_feature/profiler.cpp"
}
namespace resume {
#include "by_feature/resume.cpp"
}
namespace schedule_free {
#include "by_feature/schedule_free.cpp"
}
namespace survive {
#include "by_feature/survive.cpp"
}
namespace sync_batch_norm {
#include "by_feature/sync_batch_norm.cpp"
}
namespace tensor_parallel {
#include "by_feature/tensor_parallel.cpp"
}
namespace three_d {
#include "by_feature/three_d.cpp"
}
namespace tracking {
#include "by_feature/tracking.cpp"
}
namespace uneven_inputs {
#include "by_feature/uneven_inputs.cpp"
}
namespace warm_up {
#include "by_feature/warm_up.cpp"
}

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int()>> programs = {
      {"base", base::main},
      {"automatic_batch_size", automatic_batch_size::main},
      {"automatic_gradient_accumulation", automatic_gradient_accumulation::main},
      {"checkpointing", [&] { return checkpointing::main(argc - 1, argv + 1); }},
      {"comm_hooks", comm_hooks::main},
      {"context_parallel", context_parallel::main},
      {"cross_validation", cross_validation::main},
      {"early_stopping", early_stopping::main},
      {"gan", gan::main},
      {"gradient_accumulation", gradient_accumulation::main},
      {"gradient_accumulation_for_autoregressive_models", gradient_accumulation_for_autoregressive_models::main},
      {"local_sgd", local_sgd::main},
      {"metrics", metrics::main},
      {"mixed_precision", mixed_precision::main},
      {"pipeline_parallel", pipeline_parallel::main},
      {"preemption", [&] { return preemption::main(argc - 1, argv + 1); }},
      {"profiler", [&] { return profiler::main(argc - 1, argv + 1); }},
      {"resume", [&] { return resume::main(argc - 1, argv + 1); }},
      {"schedule_free", schedule_free::main},
      {"survive", [&] { return survive::main(argc - 1, argv + 1); }},
      {"sync_batch_norm", sync_batch_norm::main},
      {"tensor_parallel", tensor_parallel::main},
      {"three_d", [&] { return three_d::main(argc - 1, argv + 1); }},
      {"tracking", [&] { return tracking::main(argc - 1, argv + 1); }},
      {"uneven_inputs", uneven_inputs::main},
      {"warm_up", warm_up::main}};
  const auto program = argc < 2 ? programs.end() : programs.find(argv[1]);
  if (program == programs.end()) {
    std::cerr << "all_by_feature: name one of the programs of examples/by_feature\n";
    return 2;
  }
  return program->second();
}
