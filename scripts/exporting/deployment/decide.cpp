// Decides about an image with model.onnx, without Python: prints the decision and the highest probability.
//
//   g++ -O2 -std=c++17 decide.cpp -I ORT/include -L ORT/lib -lonnxruntime -Wl,-rpath,ORT/lib -o decide
//   ./decide FOLDER image.pgm                       # PGM or PPM (P5, P6), of 8 or 16 bits
//   ./decide FOLDER image.raw HEIGHT WIDTH CHANNELS # bytes, row by row, channels innermost
//
// ORT is the folder in onnxruntime-linux-x64-VERSION.tgz of https://github.com/microsoft/onnxruntime/releases; FOLDER has
// model.onnx and model.txt: the channels, the values of 16 bits that become 0 and 255; then, a line each, the name of no
// decision and of each value of `decided`.

#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static const OrtApi* ort = nullptr;

[[noreturn]] static void fail(const std::string& reason) {
    std::fprintf(stderr, "error: %s\n", reason.c_str());
    std::exit(1);
}

static void check(OrtStatus* status) {
    if (status) fail(ort->GetErrorMessage(status));
}

struct Model {
    int channels = 0;
    double low = 0, high = 65535;
    std::string other;
    std::vector<std::string> decisions;
};

struct Picture {
    int64_t height = 0, width = 0, channels = 0;
    std::vector<uint8_t> pixels;  // row by row, channels innermost
};

static Model read_model(const std::string& file) {
    std::ifstream text(file);
    Model model;
    std::string line;
    if (!(text >> model.channels >> model.low >> model.high)) fail(file + ": cannot be read");
    std::getline(text, line);
    std::getline(text, model.other);
    while (std::getline(text, line)) model.decisions.push_back(line);
    return model;
}

static int64_t next_number(std::istream& file) {  // of the header of a PNM file, which may have comments
    while (true) {
        file >> std::ws;
        if (file.peek() != '#') break;
        std::string comment;
        std::getline(file, comment);
    }
    int64_t number = 0;
    if (!(file >> number) || number <= 0) fail("the header of the PNM file is damaged");
    return number;
}

static Picture read_picture(int count, char** arguments, const Model& model) {
    std::ifstream file(arguments[2], std::ios::binary);
    if (!file) fail(std::string(arguments[2]) + ": cannot be read");
    Picture picture;
    int64_t highest = 255;
    if (count == 6) {
        picture.height = std::atoll(arguments[3]);
        picture.width = std::atoll(arguments[4]);
        picture.channels = std::atoll(arguments[5]);
    } else {
        char p = 0, kind = 0;
        file.get(p).get(kind);
        if (p != 'P' || (kind != '5' && kind != '6')) fail("give a PGM or PPM file (P5, P6), or HEIGHT WIDTH CHANNELS");
        picture.channels = kind == '5' ? 1 : 3;
        picture.width = next_number(file);
        picture.height = next_number(file);
        highest = next_number(file);
        file.get();
    }
    std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), {});
    const size_t values = picture.height * picture.width * picture.channels;
    const bool is_deep = highest > 255;
    if (bytes.size() != values * (is_deep ? 2 : 1)) fail("the file has not as many bytes as the image has values");
    picture.pixels.resize(values);
    const float low = is_deep ? model.low : 0;
    const float high = is_deep && model.high < 65535 ? model.high : highest;  // else white is as the file says
    for (size_t i = 0; i < values; ++i) {
        const float value = is_deep ? 256 * bytes[2 * i] + bytes[2 * i + 1] : bytes[i];
        const float level = std::nearbyint((value - low) * 255 / (high - low));
        picture.pixels[i] = uint8_t(std::clamp(level, 0.0f, 255.0f));
    }
    return picture;
}

static Picture convert(const Picture& picture, int channels) {  // gray to RGB, and RGB to gray as Pillow does
    if (picture.channels == channels) return picture;
    Picture other = picture;
    other.channels = channels;
    other.pixels.clear();
    for (size_t i = 0; i < picture.pixels.size(); i += picture.channels) {
        const uint8_t* at = &picture.pixels[i];
        const uint8_t gray = channels == 3 ? at[0] : (at[0] * 19595 + at[1] * 38470 + at[2] * 7471 + 0x8000) >> 16;
        other.pixels.insert(other.pixels.end(), channels, gray);
    }
    return other;
}

int main(int count, char** arguments) {
    if (count != 3 && count != 6) fail("give FOLDER IMAGE, or FOLDER IMAGE HEIGHT WIDTH CHANNELS");
    const std::string folder = arguments[1];
    const Model model = read_model(folder + "/model.txt");
    Picture picture = convert(read_picture(count, arguments, model), model.channels);

    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!ort) fail("libonnxruntime.so is older than its header");
    OrtEnv* environment = nullptr;
    OrtSessionOptions* options = nullptr;
    OrtSession* session = nullptr;
    OrtMemoryInfo* memory = nullptr;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "decide", &environment));
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateSession(environment, (folder + "/model.onnx").c_str(), options, &session));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));

    const int64_t shape[] = {picture.height, picture.width, picture.channels};
    OrtValue* image = nullptr;
    check(ort->CreateTensorWithDataAsOrtValue(memory, picture.pixels.data(), picture.pixels.size(), shape, 3,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, &image));
    const char* inputs[] = {"image"};
    const char* outputs[] = {"decided", "highest"};
    OrtValue* values[] = {nullptr, nullptr};
    check(ort->Run(session, nullptr, inputs, &image, 1, outputs, 2, values));
    bool* decided = nullptr;
    float* highest = nullptr;
    check(ort->GetTensorMutableData(values[0], reinterpret_cast<void**>(&decided)));
    check(ort->GetTensorMutableData(values[1], reinterpret_cast<void**>(&highest)));
    std::string decision;
    for (size_t i = 0; i < model.decisions.size(); ++i) {
        if (decided[i]) decision += (decision.empty() ? "" : " | ") + model.decisions[i];
    }
    std::printf("%s\t%.6f\n", (decision.empty() ? model.other : decision).c_str(), *highest);
    return 0;  // the process ends: the library frees the rest
}
