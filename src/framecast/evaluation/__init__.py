"""What a model scores: likelihood, FVD, PSNR and SSIM, each as the paper's own tools define it."""
