//! Decompression of one cluster. The input may be longer than what was compressed.

use cairn_format::qcow2::Compression;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

/// The largest window that a Zstandard decoder has to have, by its specification.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The `bytes` of a cluster, or why there are none.
pub(super) fn inflate(how: Compression, input: &[u8], bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0; bytes];
    match how {
        Compression::Deflate => {
            let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            let mut state = DecompressorOxide::new();
            let (status, _, written) = decompress(&mut state, input, &mut out, 0, flags);
            let is_full = matches!(status, TINFLStatus::Done | TINFLStatus::HasMoreOutput);
            match is_full && written == bytes {
                true => Ok(out),
                false => Err(format!("deflate: {status:?} after {written} of {bytes} bytes")),
            }
        }
        Compression::Zstd => {
            let decoder = StreamingDecoder::new_with_max_window_size(input, WINDOW_BYTES_MAX);
            let mut decoder = decoder.map_err(|error| format!("zstd: {error}"))?;
            match decoder.read_exact(&mut out) {
                Ok(()) => Ok(out),
                Err(error) => Err(format!("zstd: {error}")),
            }
        }
    }
}
