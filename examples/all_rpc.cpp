// All programs of rpc/ in one: `all_rpc NAME [ARGUMENT…]`. Compiled together they take as long as two of them do alone.
#include <hasten/parallel/ddp/ddp.h>
#include <hasten/parallel/share/share_parameters.h>
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <random>

#include "arguments.h"
#include "rpc/cartpole.h"

namespace averaging {
#include "rpc/averaging.cpp"
}
namespace batch_update {
#include "rpc/batch_update.cpp"
}
namespace ddp_and_rpc {
#include "rpc/ddp_and_rpc.cpp"
}
namespace hogwild {
#include "rpc/hogwild.cpp"
}
namespace parameter_server {
#include "rpc/parameter_server.cpp"
}
namespace pipeline_resnet50 {
#include "rpc/pipeline_resnet50.cpp"
}
namespace reinforce {
#include "rpc/reinforce.cpp"
}
namespace reinforce_batched {
#include "rpc/reinforce_batched.cpp"
}
namespace rnn {
#include "rpc/rnn.cpp"
}

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(int, char**)>> programs = {
      {"averaging", averaging::main},
      {"batch_update", batch_update::main},
      {"ddp_and_rpc", ddp_and_rpc::main},
      {"hogwild", hogwild::main},
      {"parameter_server", parameter_server::main},
      {"pipeline_resnet50", pipeline_resnet50::main},
      {"reinforce", reinforce::main},
      {"reinforce_batched", reinforce_batched::main},
      {"rnn", rnn::main}};
  const auto found = argc > 1 ? programs.find(argv[1]) : programs.end();
  if (found == programs.end()) {
    std::cerr << "usage: all_rpc NAME [ARGUMENT…], with a NAME of";
    for (const auto& [name, program] : programs) std::cerr << ' ' << name;
    std::cerr << std::endl;
    return 2;
  }
  return found->second(argc - 1, argv + 1);
}
