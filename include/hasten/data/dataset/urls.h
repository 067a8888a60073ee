// Addresses of fastai's data sets (its URLs), for fetch_archive: `fetch_archive(urls::kPets, {.into = "data"})`.
//
// The archives are fastai's own, on its servers. Their hashes are not known here: give FetchOptions::sha256.
#pragma once

namespace hasten::data::urls {

// Images with their classes.
inline constexpr const char* kPets = "https://s3.amazonaws.com/fast-ai-imageclas/oxford-iiit-pet.tgz";
inline constexpr const char* kImagenette = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2.tgz";
inline constexpr const char* kImagenette160 = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz";
inline constexpr const char* kImagenette320 = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz";
inline constexpr const char* kImagewoof = "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2.tgz";
inline constexpr const char* kImagewoof160 = "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-160.tgz";
inline constexpr const char* kImagewoof320 = "https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-320.tgz";
inline constexpr const char* kMnist = "https://s3.amazonaws.com/fast-ai-imageclas/mnist_png.tgz";
inline constexpr const char* kMnistSample = "https://s3.amazonaws.com/fast-ai-sample/mnist_sample.tgz";
inline constexpr const char* kMnistTiny = "https://s3.amazonaws.com/fast-ai-sample/mnist_tiny.tgz";
inline constexpr const char* kCifar = "https://s3.amazonaws.com/fast-ai-sample/cifar10.tgz";
inline constexpr const char* kCifar100 = "https://s3.amazonaws.com/fast-ai-imageclas/cifar100.tgz";
inline constexpr const char* kDogs = "https://s3.amazonaws.com/fast-ai-sample/dogscats.tgz";
inline constexpr const char* kFlowers = "https://s3.amazonaws.com/fast-ai-imageclas/oxford-102-flowers.tgz";
inline constexpr const char* kFood = "https://s3.amazonaws.com/fast-ai-imageclas/food-101.tgz";
inline constexpr const char* kCars = "https://s3.amazonaws.com/fast-ai-imageclas/stanford-cars.tgz";
inline constexpr const char* kCaltech101 = "https://s3.amazonaws.com/fast-ai-imageclas/caltech_101.tgz";
inline constexpr const char* kBirds = "https://s3.amazonaws.com/fast-ai-imageclas/CUB_200_2011.tgz";

// Images with masks or places.
inline constexpr const char* kCamvid = "https://s3.amazonaws.com/fast-ai-imagelocal/camvid.tgz";
inline constexpr const char* kCamvidTiny = "https://s3.amazonaws.com/fast-ai-sample/camvid_tiny.tgz";
inline constexpr const char* kPascal2007 = "https://s3.amazonaws.com/fast-ai-imagelocal/pascal_2007.tgz";
inline constexpr const char* kPascal2012 = "https://s3.amazonaws.com/fast-ai-imagelocal/pascal_2012.tgz";

// Texts.
inline constexpr const char* kImdb = "https://s3.amazonaws.com/fast-ai-nlp/imdb.tgz";
inline constexpr const char* kImdbSample = "https://s3.amazonaws.com/fast-ai-sample/imdb_sample.tgz";
inline constexpr const char* kWikitext = "https://s3.amazonaws.com/fast-ai-nlp/wikitext-103.tgz";
inline constexpr const char* kWikitextTiny = "https://s3.amazonaws.com/fast-ai-nlp/wikitext-2.tgz";
inline constexpr const char* kAgNews = "https://s3.amazonaws.com/fast-ai-nlp/ag_news_csv.tgz";
inline constexpr const char* kYelpReviews = "https://s3.amazonaws.com/fast-ai-nlp/yelp_review_full_csv.tgz";
inline constexpr const char* kHumanNumbers = "https://s3.amazonaws.com/fast-ai-sample/human_numbers.tgz";

// Tables.
inline constexpr const char* kAdultSample = "https://s3.amazonaws.com/fast-ai-sample/adult_sample.tgz";
inline constexpr const char* kMovieLensSample = "https://s3.amazonaws.com/fast-ai-sample/movie_lens_sample.tgz";
inline constexpr const char* kMovieLens100k = "http://files.grouplens.org/datasets/movielens/ml-100k.zip";

// Weights of AWD-LSTM, forward and backward, trained on WikiText-103.
inline constexpr const char* kWikitext103Forward = "https://s3.amazonaws.com/fast-ai-modelzoo/wt103-fwd.tgz";
inline constexpr const char* kWikitext103Backward = "https://s3.amazonaws.com/fast-ai-modelzoo/wt103-bwd.tgz";

}  // namespace hasten::data::urls
