// Files of fastai's AWD-LSTMs, whose rows go by their own words: wt103-fwd's lstm_fwd.pth with itos_wt103.pkl, and what
// save_encoder of fastai writes.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace hasten::learner {

struct FastaiWords {
  /// The words of the model's rows.
  std::vector<std::string> own = {};
  /// The file with the words of the file's rows, a pickled list; "": the one .pkl of the folder, if there is one.
  std::string file = {};
};

/// Fills the AWD-LSTM `model` from fastai's file at `path`, or from the one .pth in that folder. It has a child
/// "encoder"; the output of a language model is filled, too. Rows of words that the file lacks are the mean of all its
/// rows, as in fastai. Returns false, with nothing changed, for a file of another form.
/// Blocks: on the files. Throws: DataError for damaged files, a missing entry, and words of another number than rows;
/// UsageError where `words.own` is empty and a file has words, and for sizes that are not the model's.
bool load_fastai_text(torch::nn::Module& model, const std::string& path, const FastaiWords& words);

}  // namespace hasten::learner
