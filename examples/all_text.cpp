// All programs of text/ in one, for the tests: `all_text NAME [ARGUMENT…]`; see all_vision.cpp.
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/distributed.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <hasten/learner/recorder.h>
#include <hasten/learner/text_loaders.h>
#include <hasten/models/bert.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>

#include "complete.h"
#include "data/paraphrases.h"
#include "models/awd_lstm.h"
#include "support.h"
#include "text/pairs.h"

namespace complete_nlp {
#include "text/complete_nlp.cpp"
}
namespace nlp {
#include "text/nlp.cpp"
}
namespace text_classifier {
#include "text/text_classifier.cpp"
}

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(int, char**)>> programs = {
      {"complete_nlp", complete_nlp::main}, {"nlp", nlp::main}, {"text_classifier", text_classifier::main}};
  const auto program = argc < 2 ? programs.end() : programs.find(argv[1]);
  if (program == programs.end()) {
    std::cerr << "all_text: name one of the programs of examples/text\n";
    return 2;
  }
  return program->second(argc - 1, argv + 1);
}
