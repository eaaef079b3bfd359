// Which files of a model on the Hub a conversion reads. No others are downloaded.
#pragma once

#include <string>
#include <vector>

#include "apps/hub/hub.h"

namespace edgellm {

// Configuration, tokenizer, licence and the index of the weights. Throws Error (kUnsupported) for a
// model that holds no Hugging Face folder that can be converted, with what it does hold.
std::vector<hub::HubFile> text_files(const hub::Hub& hub, const hub::HubModel& model);

// The safetensors files: of the index, whose downloaded path is given, or the only one.
std::vector<hub::HubFile> weight_files(const hub::Hub& hub, const hub::HubModel& model,
                                       const std::string& index_path);

// The GGUF file of that name, with all parts of one that is split. Throws Error (kModelFile) where
// there is none.
std::vector<hub::HubFile> gguf_files(const hub::Hub& hub, const hub::HubModel& model,
                                     const std::string& name);

inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

}  // namespace edgellm
